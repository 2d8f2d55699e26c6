#include "paceline/train/gradient_norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "paceline/train/plain_tensor.h"

namespace paceline {
namespace {

/// Sixteen sums side by side, which compilers turn into vectors.
template <class T>
double sum_of_squares(std::span<const T> values) {
  constexpr std::size_t kLanes = 16;
  std::array<double, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      sums[lane] += value * value;
    }
  }
  double sum = 0;
  for (const double lane : sums) sum += lane;
  for (; i < values.size(); ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

/// Without gaps; a sparse one (in a world of one) with each place once.
torch::Tensor dense_of(const torch::Tensor& gradient) {
  if (gradient.layout() != torch::kStrided) return gradient.coalesce().values().contiguous();
  const torch::Tensor values = plain(gradient);
  return values.is_non_overlapping_and_dense() ? values : values.contiguous();
}

double sum_of_squares(const torch::Tensor& gradient) {
  const torch::Tensor dense = dense_of(gradient);
  const auto count = static_cast<std::size_t>(dense.numel());
  if (dense.scalar_type() == torch::kFloat32)
    return sum_of_squares(std::span<const float>(dense.data_ptr<float>(), count));
  if (dense.scalar_type() == torch::kFloat64)
    return sum_of_squares(std::span<const double>(dense.data_ptr<double>(), count));
  return sum_of_squares(dense.to(torch::kFloat32));
}

double largest(const torch::Tensor& gradient) {
  const torch::Tensor dense = dense_of(gradient);
  return dense.numel() == 0 ? 0 : dense.abs().max().to(torch::kFloat64).item<double>();
}

}  // namespace

double clip_grad_norm(DistributedDataParallel& ddp, double max_norm, double norm_type) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::InvalidArgument, "clip_grad_norm: " + why, ddp.comm().rank());
  };
  if (norm_type != 2 && !std::isinf(norm_type)) refuse(fmt::format("the norm is 2 or infinity, not {}", norm_type));
  if (!(max_norm > 0)) refuse(fmt::format("max_norm is {}; it must be above 0", max_norm));
  if (!ddp.averaged()) {
    refuse(
        "the gradients are not averaged yet, so that each rank would clip others; clip after the backward that "
        "averages");
  }
  const torch::NoGradGuard no_grad;
  double total = 0;
  for (const NamedTensor& parameter : ddp.trained()) {
    const torch::Tensor& gradient = parameter.tensor.grad();
    if (!gradient.defined()) continue;
    const double own = norm_type == 2 ? sum_of_squares(gradient) : largest(gradient);
    if (!std::isfinite(own)) refuse(fmt::format("the gradient of '{}' holds NaN or infinity", parameter.name));
    total = norm_type == 2 ? total + own : std::max(total, own);
  }
  const double norm = norm_type == 2 ? std::sqrt(total) : total;
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  for (const NamedTensor& parameter : ddp.trained()) {
    if (parameter.tensor.grad().defined()) parameter.tensor.mutable_grad().mul_(factor);
  }
  return norm;
}

}  // namespace paceline
