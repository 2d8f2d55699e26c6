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
void hold(AutogradContext* context, const std::shared_ptr<const Link>& link) {
  if (link) context->saved_data["link"] = held(link);
}
std::shared_ptr<const Link> held_link(AutogradContext* context) {
  const auto found = context->saved_data.find("link");
  if (found == context->saved_data.end()) return nullptr;
  const torch::Tensor owner = found->second.toTensor();
  return {static_cast<const Link*>(owner.data_ptr()), [owner](const Link*) {}};
}

/// The sum over ranks as a differentiable function: every rank's result depends on every rank's values, so its
/// derivative is the sum over ranks again.
struct SumOverRanks : torch::autograd::Function<SumOverRanks> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& values,
                               const std::shared_ptr<const Link>& link) {
    hold(context, link);
    torch::Tensor sums = values.contiguous().clone();
    sum_over_ranks(link.get(), sums, "batch norm second derivatives");
    return sums;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {SumOverRanks::apply(gradients[0], held_link(context)), torch::Tensor()};
  }
};

/// (C, ...) to (2C): both in one message.
variable_list two_sums_over_ranks(const torch::Tensor& a, const torch::Tensor& b,
                                  const std::shared_ptr<const Link>& link) {
  return SumOverRanks::apply(torch::cat({a, b}), link).chunk(2);
}

struct Normalize : torch::autograd::Function<Normalize> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& input, const torch::Tensor& weight,
                               const torch::Tensor& bias, const torch::Tensor& mean, const torch::Tensor& inverse,
                               double count, double eps, const std::shared_ptr<const Link>& link) {
    context->save_for_backward({input, weight, mean, inverse});
    context->saved_data["count"] = count;
    context->saved_data["eps"] = eps;
    hold(context, link);
    return normalized(input, mean, inverse) * per_channel(weight, input) + per_channel(bias, input);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto link = held_link(context);
    const double count = context->saved_data["count"].toDouble();
    // With create_graph the derivatives of what this returns are wanted too.
    if (torch::GradMode::is_enabled()) {
      return differentiable(saved[0], saved[1], gradients[0], count, context->saved_data["eps"].toDouble(), link);
    }
    const torch::Tensor& gradient = gradients[0];
    const torch::Tensor values = normalized(saved[0], saved[2], saved[3]);
    const torch::Tensor of_bias = channel_sums(gradient);
    const torch::Tensor of_weight = channel_sums(gradient * values);
    torch::Tensor sums = torch::cat({of_bias, of_weight});
    sum_over_ranks(link.get(), sums, "batch norm gradients");
    sums /= count;
    return results(gradient, values, sums.chunk(2), saved[1] * saved[3], of_weight, of_bias);
  }

 private:
  static torch::Tensor normalized(const torch::Tensor& input, const torch::Tensor& mean, const torch::Tensor& inverse) {
    return (input - per_channel(mean, input)) * per_channel(inverse, input);
  }

  /// `means` over all ranks: of the gradient, and of the gradient times the normalised values.
  static variable_list results(const torch::Tensor& gradient, const torch::Tensor& values, const variable_list& means,
                               const torch::Tensor& scale, const torch::Tensor& of_weight,
                               const torch::Tensor& of_bias) {
    const auto type = gradient.scalar_type();
    const torch::Tensor of_input =
        (gradient - per_channel(means[0].to(type), gradient) - values * per_channel(means[1].to(type), gradient)) *
        per_channel(scale, gradient);
    return {of_input,
            of_weight.to(scale.scalar_type()),
            of_bias.to(scale.scalar_type()),
            torch::Tensor(),
            torch::Tensor(),
            torch::Tensor(),
            torch::Tensor(),
            torch::Tensor()};
  }

  /// The same as a function of input, weight and gradient, through the statistics too.
  static variable_list differentiable(const torch::Tensor& input, const torch::Tensor& weight,
                                      const torch::Tensor& gradient, double count, double eps,
                                      const std::shared_ptr<const Link>& link) {
    const auto type = input.scalar_type();
    const torch::Tensor mean = SumOverRanks::apply(channel_sums(input), link) / count;
    const torch::Tensor centered = input - per_channel(mean.to(type), input);
    const torch::Tensor variance =
        SumOverRanks::apply(channel_sums(centered.to(torch::kFloat64).square()), link) / count;
    const torch::Tensor inverse = (variance + eps).rsqrt().to(type);
    const torch::Tensor values = centered * per_channel(inverse, input);
    const torch::Tensor of_bias = channel_sums(gradient);
    const torch::Tensor of_weight = channel_sums(gradient * values);
    variable_list means = two_sums_over_ranks(of_bias, of_weight, link);
    for (torch::Tensor& m : means) m = m / count;
    return results(gradient, values, means, weight * inverse, of_weight, of_bias);
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
                          (statistics.variance + options_.eps).rsqrt().to(type), statistics.count, options_.eps, link_);
}

}  // namespace paceline
