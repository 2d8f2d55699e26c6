// A gradient's way between libtorch's hooks and the reducer.
#include <fmt/format.h>

#include <algorithm>

#include "paceline/train/data_parallel_state.h"

namespace paceline {
namespace {

torch::Tensor tensor_over(const BucketPiece& piece) {
  const auto type = [&] {
    switch (piece.dtype) {
      case Dtype::Float64: return torch::kFloat64;
      case Dtype::Float16: return torch::kFloat16;
      case Dtype::BFloat16: return torch::kBFloat16;
      default: return torch::kFloat32;
    }
  }();
  const auto count = static_cast<std::int64_t>(piece.bytes.size() / size_of(piece.dtype));
  return torch::from_blob(piece.bytes.data(), {count}, type);
}

// A layout that covers its memory without gaps can be a slot's; any other gradient is kept contiguous, as libtorch
// does.
std::vector<std::int64_t> slot_strides(const torch::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return torch::empty(parameter.sizes(), torch::kMeta).strides().vec();
}

}  // namespace

// The hook of a parameter whose gradient is final.
void DistributedDataParallel::State::on_gradient(std::size_t index) {
  if (!in_backward) begin_backward();
  else if (backward.expired()) fail_abandoned();
  require_fresh(index);
  if (averages) take_gradient(index);
  else keep_gradient(index);
}

// Whether it averages is decided here, at the first gradient of a backward.
void DistributedDataParallel::State::begin_backward() {
  if (options.reduction == Reduction::Weighted && !next_weight) {
    fail(ErrorCode::InvalidArgument,
         "backward() of a model with Reduction::Weighted needs a set_weight() of its own before it");
  }
  in_backward = true;
  const auto token = std::make_shared<char>();
  backward = token;
  compat::at_end_of_backward([this, token] { end_backward(); });
  ++passes;
  weight += next_weight.value_or(0);
  next_weight.reset();
  averages = no_syncs == 0 && passes >= accumulate;
  if (averages) begin_round(0);
}

void DistributedDataParallel::State::begin_round(std::uint32_t flags) {
  RoundCall call{.passes = passes, .flags = flags};
  if (options.reduction == Reduction::Sum) call.op = ReduceOp::Sum;
  if (options.reduction == Reduction::Weighted) call.weight = weight;
  divisor = options.reduction == Reduction::Weighted && weight > 0 ? weight : 1;
  reducer.begin(call);
}

// Only accumulates: the gradient goes to its slot, where the next backwards add to it.
void DistributedDataParallel::State::keep_gradient(std::size_t index) {
  torch::Tensor& gradient = parameters[index].tensor.mutable_grad();
  pending[index] = 1;
  if (!uses_slots || gradient.is_alias_of(slots[index])) return;
  require_dense(index);
  const torch::NoGradGuard no_grad;
  slots[index].copy_(gradient);
  gradient = slots[index];
}

// A gradient that was accumulated in place lies in its slot already; a fresh one is brought there.
void DistributedDataParallel::State::take_gradient(std::size_t index) {
  torch::Tensor& gradient = parameters[index].tensor.mutable_grad();
  const torch::Tensor& slot = slots[index];
  if (!uses_slots || gradient.is_alias_of(slot)) return reducer.mark_ready(index);
  require_dense(index);
  if (gradient.strides() == slot.strides() && gradient.scalar_type() == slot.scalar_type()) {
    reducer.store(index, static_cast<const std::byte*>(gradient.data_ptr()));
  } else {
    const torch::NoGradGuard no_grad;
    slot.copy_(gradient);
    reducer.mark_ready(index);
  }
  gradient = slot;
}

// While the bytes are in cache. The reduction multiplies by the weight again, which no rank needs to know beforehand.
void DistributedDataParallel::State::before_launch(const BucketPiece& piece) {
  if (divisor == 1) return;
  const torch::NoGradGuard no_grad;
  tensor_over(piece).div_(divisor);
}

// All hooks of this backward have run.
void DistributedDataParallel::State::end_backward() {
  if (averages) finish_round();
  in_backward = false;
  comm.timeline().enter(averages ? Phase::Other : Phase::Forward);
  comm.timeline().set_accumulating(!averages);
}

// A round without a backward.
void DistributedDataParallel::State::average() {
  if (in_backward) fail_abandoned();
  weight += next_weight.value_or(0);
  next_weight.reset();
  begin_round(0);
  finish_round();
}

void DistributedDataParallel::State::finish_round() {
  const torch::NoGradGuard no_grad;
  require_still_frozen();
  for (const std::size_t index : reducer.absent()) contribute_absent(index);
  const bool moved = reducer.finish();
  require_equal_passes();
  if (moved) move_gradients();
  for (auto& [index, before] : absent) {
    if (reducer.took_part(index)) {
      if (uses_slots) parameters[index].tensor.mutable_grad() = slots[index];
    } else if (before.defined()) {
      slots[index].copy_(before);
    }
  }
  absent.clear();
  std::fill(pending.begin(), pending.end(), 0);
  passes = 0;
  weight = 0;
  for (std::size_t index = 0; index < slots.size(); ++index) versions[index] = slots[index]._version();
  for (const auto& [a, b] : reducer.twins()) {
    recorder.add_finding(
        {.id = "same_batch",
         .severity = Severity::Error,
         .evidence = fmt::format("ranks {} and {} computed the same gradients in the first step", a, b),
         .fix = "they read the same samples: use paceline::DataLoader, or give each rank its part"});
  }
}

// One process would add nothing to this gradient, so the rank contributes what is there: what earlier backwards
// accumulated, or zeros. Remembered, since a gradient that no rank computed must stay as it is.
void DistributedDataParallel::State::contribute_absent(std::size_t index) {
  const NamedTensor& parameter = parameters[index];
  if (!hooks.still_watches(index, parameter.tensor)) fail_changed(parameter.name);
  torch::Tensor& gradient = parameter.tensor.mutable_grad();
  const bool accumulated = pending[index] && gradient.defined();
  if (uses_slots) {
    if (!gradient.defined()) {
      slots[index].zero_();
    } else if (!gradient.is_alias_of(slots[index])) {
      require_dense(index);
      slots[index].copy_(gradient);
      gradient = slots[index];
    }
    if (!accumulated) absent.emplace_back(index, gradient.defined() ? slots[index].clone() : torch::Tensor());
  }
  if (accumulated) reducer.mark_ready(index);
  else reducer.mark_absent(index);
}

void DistributedDataParallel::State::bind_slots() {
  slots.clear();
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const torch::Tensor& parameter = parameters[index].tensor;
    const Reducer::SlotMemory memory = reducer.slot(index);
    // Not a view of the bucket: libtorch's zero_grad() detaches in place, which views refuse.
    slots.push_back(torch::from_blob(
        memory.data, parameter.sizes(), slot_strides(parameter), [owner = memory.owner](void*) {},
        parameter.options().requires_grad(false)));
  }
}

void DistributedDataParallel::State::move_gradients() {
  const std::vector<torch::Tensor> old = slots;
  bind_slots();
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    torch::Tensor& gradient = parameters[index].tensor.mutable_grad();
    if (gradient.defined() && gradient.is_alias_of(old[index])) gradient = slots[index];
  }
}

}  // namespace paceline
