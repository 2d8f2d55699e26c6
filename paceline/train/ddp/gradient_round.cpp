// A gradient's way between libtorch's hooks and the reducer.
#include <algorithm>

#include "paceline/base/finite.h"
#include "paceline/train/ddp/data_parallel_state.h"
#include "paceline/train/tensor_over.h"

namespace paceline {
// Before a node that is inside no other: queued at a backward's first gradient, which may belong to one inside a node,
// its end would come too early.
void DistributedDataParallel::State::on_node() {
  if (in_backward || backward_runs()) return;
  look_at_gradients();
  end_queued = true;
  compat::at_end_of_backward([this, held = token] { end_backward(); });
}

// The hook of a parameter that has been given its gradient.
void DistributedDataParallel::State::on_gradient(std::size_t index, const torch::Tensor& given) {
  if (!in_backward) begin_backward(index);
  else if (!backward_runs()) fail_abandoned();
  if (!given.defined()) return;  // a function that gave none; as if backward had not reached the parameter
  if (!arrived[index]) require_fresh(index);
  if (uses_slots) recognize_slot(index, given);
  const bool waits = may_come_again(index);
  if (averages && !waits) take_gradient(index);
  else keep_gradient(index);
}

// Whether it averages is decided here, at the first gradient of a backward.
void DistributedDataParallel::State::begin_backward(std::size_t index) {
  if (options.reduction == Reduction::Weighted && !next_weight) {
    fail(ErrorCode::InvalidArgument,
         "backward() of a model with Reduction::Weighted needs a set_weight() of its own before it");
  }
  on_node();  // where a program has switched off what the watch sees nodes by
  in_backward = true;
  arrivals.clear();
  std::fill(arrived.begin(), arrived.end(), 0);
  ++backwards;
  weight += next_weight.value_or(0);
  next_weight.reset();
  averages = no_syncs == 0 && backwards >= accumulate;
  require_unchanged(index);
  if (averages) begin_round(0);
}

// A backward inside another one's node (re-entrant checkpointing) gives gradients of its own to parameters that come
// elsewhere too, which no graph says beforehand. So these wait for the end of the outermost backward. In the first
// round all do, as a plain use of a parameter may come before one of that kind.
bool DistributedDataParallel::State::may_come_again(std::size_t index) {
  if (arrived[index] || BackwardWatch::inside_node()) comes_again[index] = 1;
  if (arrived[index] && averages) require_not_sent(index);
  if (!arrived[index]) arrivals.push_back(index);
  arrived[index] = 1;
  return comes_again[index] || reducer.rounds() == 0;
}

void DistributedDataParallel::State::begin_round(std::uint32_t flags) {
  if (stop_requested) flags |= StepPrologue::kStop;
  if (loss_follows) flags |= StepPrologue::kLoss;
  RoundCall call{.backwards = backwards, .flags = flags, .changes = changes_of_parameters()};
  switch (options.reduction) {
    case Reduction::Sum: call.op = ReduceOp::Sum; break;
    case Reduction::Weighted: call.weight = weight; break;
    case Reduction::Mean:
      if ((flags & StepPrologue::kEnded) && backwards == 0 && options.ended_ranks == EndedRanks::LeaveOut)
        call.weight = 0;
  }
  divisor = options.reduction == Reduction::Weighted && weight > 0 ? weight : 1;
  is_read = call.weight != 0;
  end = {};
  take_state_hash(flags);
  reducer.begin(call);
}

// Only accumulates: the gradient goes to its slot, where the next backwards add to it.
void DistributedDataParallel::State::keep_gradient(std::size_t index) {
  pending[index] = 1;
  if (uses_slots && !users_own[index] && !is_in_slot(index)) bring_to_slot(index);
  probes[index] = probe(index);
}

// A gradient that was accumulated in place, or computed there, lies in its slot already; any other is brought there.
void DistributedDataParallel::State::take_gradient(std::size_t index) {
  torch::Tensor& gradient = parameters[index].tensor.mutable_grad();
  if (!uses_slots || is_in_slot(index)) return reducer.mark_ready(index);
  require_no_graph(index);
  if (is_laid_out_like_slot(index)) {
    reclaim_slot(index);
    reducer.store(index, static_cast<const std::byte*>(gradient.data_ptr()));
    if (!users_own[index]) gradient = slots[index];
  } else {
    bring_to_slot(index);
    reducer.mark_ready(index);
  }
}

// The reduction multiplies by the weight again, which no rank needs to know beforehand.
void DistributedDataParallel::State::divide(const BucketPiece& piece) {
  if (divisor == 1) return;
  const torch::NoGradGuard no_grad;
  tensor_over(piece.dtype, piece.bytes).div_(divisor);
}

// Of values as they are sent: what is rounded may have become too large. A world of one without slots looks later.
void DistributedDataParallel::State::note_not_finite(const BucketPiece& piece, Dtype sent_as,
                                                     std::span<const std::byte> sent) {
  if (!uses_slots || options.not_finite == NotFinite::Unchecked || end.bad_parameter != 0 || !is_read) return;
  if (const auto element = first_not_finite(sent_as, sent)) {
    end.bad_parameter = 1 + reducer.parameter_at(piece.bucket, piece.offset + *element * size_of(piece.dtype));
  }
}

// All hooks of the outermost backward have run; of one that may not be this model's.
void DistributedDataParallel::State::end_backward() {
  end_queued = false;
  if (!in_backward) return require_watched();
  if (averages) finish_round();
  in_backward = false;
  comm.timeline().enter(averages ? Phase::Other : Phase::Forward);
  comm.timeline().set_accumulating(!averages);
}

// A round without a backward.
void DistributedDataParallel::State::average() {
  if (in_backward) fail_abandoned();
  look_at_gradients();
  weight += next_weight.value_or(0);
  next_weight.reset();
  begin_round(0);
  finish_round();
  comm.timeline().enter(Phase::Other);
  comm.timeline().set_accumulating(false);
}

void DistributedDataParallel::State::finish_round() {
  const torch::NoGradGuard no_grad;
  require_still_frozen();
  shared.require_watched(comm);
  contribute_accumulated();
  absent_here = reducer.absent();
  for (const std::size_t index : absent_here) contribute_absent(index);
  if (!uses_slots) {
    keep_dense();
    look_for_not_finite();
  }
  if (reducer.finish(end)) move_gradients();
  require_equal_backwards();
  for (auto& [index, before] : absent) {
    if (reducer.took_part(index)) {
      if (!users_own[index]) parameters[index].tensor.mutable_grad() = slots[index];
    } else if (before.defined()) {
      slots[index].copy_(before);
    }
  }
  absent.clear();
  for (std::size_t index = 0; index < parameters.size(); ++index) give_back_result(index);
  std::fill(pending.begin(), pending.end(), 0);
  backwards = 0;
  weight = 0;
  stop_requested = false;
  const std::uint64_t dropped_before = skipped;
  judge();
  if (skipped == dropped_before) reducer.commit();
  if (options.buffers != Buffers::Own) sync_buffers(options.buffers, first_active(), is_read ? 1 : 0);
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const torch::Tensor& gradient = parameters[index].tensor.grad();
    versions[index] = users_own[index] && gradient.defined() ? gradient._version() : slots[index]._version();
  }
}

// To memory of the user's own.
void DistributedDataParallel::State::give_back_result(std::size_t index) {
  torch::Tensor& gradient = parameters[index].tensor.mutable_grad();
  if (uses_slots && users_own[index] && gradient.defined() && reducer.took_part(index)) gradient.copy_(slots[index]);
}

// What waited for the end of this backward, and what only an earlier one of this step reached. Buckets are laid out in
// the order of the first round: those that wait go last, so that they keep nobody waiting.
void DistributedDataParallel::State::contribute_accumulated() {
  const auto contribute = [this](std::size_t index) {
    if (!pending[index] || !parameters[index].tensor.grad().defined()) return;
    if (uses_slots && !is_in_slot(index)) bring_to_slot(index);
    reducer.mark_ready(index);
  };
  if (reducer.rounds() == 0) {
    for (const std::size_t index : arrivals) {
      if (!comes_again[index]) contribute(index);
    }
  }
  for (const std::size_t index : reducer.absent()) contribute(index);
}

// One process would add nothing to this gradient, so the rank contributes what is there: what earlier steps left, or
// zeros. Remembered, since a gradient that no rank computed must stay as it is.
void DistributedDataParallel::State::contribute_absent(std::size_t index) {
  const NamedTensor& parameter = parameters[index];
  if (!hooks.still_watches(index, parameter.tensor)) fail_changed(parameter.name);
  const torch::Tensor& gradient = parameter.tensor.grad();
  if (uses_slots) {
    if (!gradient.defined()) {
      reclaim_slot(index);
      slots[index].zero_();
    } else if (!is_in_slot(index)) {
      bring_to_slot(index);
    }
    const bool in_slot = gradient.defined() && !users_own[index];
    absent.emplace_back(index, in_slot ? slots[index].clone() : torch::Tensor());
  }
  reducer.mark_absent(index);
}

}  // namespace paceline
