#include "paceline/train/sync_batch_norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace paceline {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Link = SyncBatchNormImpl::Link;

/// Sums `values` over the ranks. Another rank may wait for this one's share of a bucket before it comes here, so that
/// is seen to until nothing is left of it.
void sum_over_ranks(const Link* link, const torch::Tensor& values, const char* label) {
  if (link == nullptr || link->comm.world_size() == 1) return;
  const ScopedPhase phase(link->comm.timeline(), Phase::Communication);
  auto* data = static_cast<std::byte*>(values.data_ptr());
  Comm::Work work = link->comm.start({.kind = Collective::AllReduce,
                                      .dtype = Dtype::Float64,
                                      .count = static_cast<std::size_t>(values.numel()),
                                      .in = data,
                                      .out = data,
                                      .label = label});
  while (!work.test() && link->while_waiting()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  work.wait();
}

/// (C) to the shape in which it meets (N, C, ...).
torch::Tensor per_channel(const torch::Tensor& values, const torch::Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

/// All dimensions but that of channels.
std::vector<std::int64_t> others(const torch::Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t d = 2; d < input.dim(); ++d) dimensions.push_back(d);
  return dimensions;
}

torch::Tensor channel_sums(const torch::Tensor& values) { return values.sum(others(values), false, torch::kFloat64); }

struct Statistics {
  torch::Tensor mean, variance;  // (C), double; the variance divides by count
  double count = 0;              // elements a channel, of all ranks
};

/// In two passes, as a mean that is far from 0 wants it.
Statistics statistics_of(const torch::Tensor& input, const Link* link) {
  const auto channels = input.size(1);
  torch::Tensor sums = torch::empty({channels + 1}, torch::kFloat64);
  sums.slice(0, 0, channels).copy_(channel_sums(input));
  sums[channels] = static_cast<double>(input.numel() / std::max<std::int64_t>(channels, 1));
  sum_over_ranks(link, sums, "batch norm means");
  Statistics result;
  result.count = sums[channels].item<double>();
  if (result.count < 2) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("SyncBatchNorm: {} value(s) a channel on all ranks together; it needs at least 2 to train",
                            result.count));
  }
  result.mean = sums.slice(0, 0, channels) / result.count;
  const torch::Tensor squares =
      channel_sums((input - per_channel(result.mean.to(input.scalar_type()), input)).to(torch::kFloat64).square());
  // The mean was rounded to the input's type: its error counts once in each square.
  const torch::Tensor rounding = (result.mean - result.mean.to(input.scalar_type()).to(torch::kFloat64)).square();
  sum_over_ranks(link, squares, "batch norm variances");
  result.variance = (squares / result.count - rounding).clamp_min(0);
  return result;
}

/// A Function keeps tensors and numbers only: a tensor that owns the link.
torch::Tensor held(const std::shared_ptr<const Link>& link) {
  return torch::from_blob(
      const_cast<Link*>(link.get()), {1}, [link](void*) {}, torch::kUInt8);
}

struct Normalize : torch::autograd::Function<Normalize> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& input, const torch::Tensor& weight,
                               const torch::Tensor& bias, const torch::Tensor& mean, const torch::Tensor& inverse,
                               double count, const std::shared_ptr<const Link>& link) {
    const torch::Tensor normalized = (input - per_channel(mean, input)) * per_channel(inverse, input);
    context->save_for_backward({normalized, weight, inverse});
    context->saved_data["count"] = count;
    if (link) context->saved_data["link"] = held(link);
    return normalized * per_channel(weight, input) + per_channel(bias, input);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor& normalized = saved[0];
    const torch::Tensor& gradient = gradients[0];
    const auto held_link = context->saved_data.find("link");
    const Link* link = held_link == context->saved_data.end()
                           ? nullptr
                           : static_cast<const Link*>(held_link->second.toTensor().data_ptr());
    const torch::Tensor of_bias = channel_sums(gradient);
    const torch::Tensor of_weight = channel_sums(gradient * normalized);
    torch::Tensor sums = torch::cat({of_bias, of_weight});
    sum_over_ranks(link, sums, "batch norm gradients");
    sums /= context->saved_data["count"].toDouble();
    const auto halves = sums.to(gradient.scalar_type()).chunk(2);
    const torch::Tensor of_input =
        (gradient - per_channel(halves[0], gradient) - normalized * per_channel(halves[1], gradient)) *
        per_channel(saved[1] * saved[2], gradient);
    const auto type = saved[1].scalar_type();
    return {of_input,        of_weight.to(type), of_bias.to(type), torch::Tensor(),
            torch::Tensor(), torch::Tensor(),    torch::Tensor()};
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const SyncBatchNormOptions& options)
    : weight(register_parameter("weight", torch::ones({options.num_features}))),
      bias(register_parameter("bias", torch::zeros({options.num_features}))),
      running_mean(register_buffer("running_mean", torch::zeros({options.num_features}))),
      running_var(register_buffer("running_var", torch::ones({options.num_features}))),
      num_batches_tracked(register_buffer("num_batches_tracked", torch::zeros({}, torch::kInt64))),
      options_(options) {}

torch::Tensor SyncBatchNormImpl::forward(const torch::Tensor& input) {
  if (input.dim() < 2 || input.size(1) != options_.num_features) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("SyncBatchNorm: an input of {} dimensions does not have {} channels in its second",
                            input.dim(), options_.num_features));
  }
  if (!is_training()) {
    return torch::batch_norm(input, weight, bias, running_mean, running_var, false, 0, options_.eps, false);
  }
  Statistics statistics;
  {
    const torch::NoGradGuard no_grad;
    statistics = statistics_of(input, link_.get());
    num_batches_tracked += 1;
    const double momentum = options_.momentum ? *options_.momentum : 1 / num_batches_tracked.item<double>();
    const double unbiased = statistics.count / (statistics.count - 1);
    running_mean.mul_(1 - momentum).add_(statistics.mean.to(running_mean.scalar_type()), momentum);
    running_var.mul_(1 - momentum).add_((statistics.variance * unbiased).to(running_var.scalar_type()), momentum);
  }
  const auto type = input.scalar_type();
  return Normalize::apply(input, weight, bias, statistics.mean.to(type),
                          (statistics.variance + options_.eps).rsqrt().to(type), statistics.count, link_);
}

}  // namespace paceline
