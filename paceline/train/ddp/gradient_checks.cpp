// What must not happen on a gradient's way, and what is said of it.
#include <fmt/format.h>

#include <algorithm>

#include "paceline/base/hash.h"
#include "paceline/train/ddp/data_parallel_state.h"
#include "paceline/train/plain_tensor.h"

namespace paceline {

std::uint64_t DistributedDataParallel::State::require_averaged(std::uint64_t since,
                                                               const torch::optim::Optimizer& optimizer) {
  if (in_backward) fail_abandoned();
  require_still_frozen();
  forget_cleared();
  if (backwards > 0) {
    fail(ErrorCode::Aborted,
         fmt::format("optimizer.step() was called while gradients of {} backward{} are accumulated and not averaged "
                     "(no_sync() or accumulate()); step after the backward that averages, or call average()",
                     backwards, backwards == 1 ? "" : "s"));
  }
  shared.require_averaged(comm, optimizer);
  if (reducer.rounds() > since) return reducer.rounds();
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    if (!hooks.still_watches(index, parameters[index].tensor)) fail_changed(parameters[index].name);
  }
  fail(ErrorCode::Aborted,
       "optimizer.step() was called on gradients that were never averaged: no backward() has reached this model since "
       "the last step");
}

// What an earlier step left would be summed over the ranks once more. A slot's version grows with every change in
// place.
void DistributedDataParallel::State::require_fresh(std::size_t index) {
  if (!uses_slots || options.reduction == Reduction::Mean || pending[index] || reducer.rounds() == 0) return;
  const torch::Tensor& gradient = parameters[index].tensor.grad();
  // Memory that the user puts there may be other memory each time.
  const bool left = is_in_slot(index) ? gradient._version() <= versions[index] + 1
                                      : users_own[index] && gradient._version() == versions[index] + 1;
  if (!left) return;
  fail(
      ErrorCode::InvalidArgument,
      fmt::format("the gradient of '{}' was not zeroed after the last step, and with Reduction::{} it would count anew "
                  "for every rank; call zero_grad() between optimizer steps, and let all backwards of a step but the "
                  "last only accumulate (no_sync())",
                  parameters[index].name, options.reduction == Reduction::Sum ? "Sum" : "Weighted"));
}

// Libtorch has added to a slot that others may have read already.
void DistributedDataParallel::State::require_not_sent(std::size_t index) {
  if (!uses_slots || !reducer.launched(index)) return;
  fail(ErrorCode::InvalidArgument,
       fmt::format("the gradient of '{}' arrived again after it was sent off: a backward inside this one (re-entrant "
                   "checkpointing) reached the parameter, which no step before this one had done. Do it from the first "
                   "step on",
                   parameters[index].name));
}

// Clipping gradients of which a part is still to come gives what no single process would. Only the gradient of
// parameter `but` has had this backward's part added.
void DistributedDataParallel::State::require_unchanged(std::size_t but) {
  if (!uses_slots || backwards < 2) return;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    if (index == but || !pending[index] || probe(index) == probes[index] || was_cleared(index)) continue;
    if (!is_in_slot(index) && !users_own[index]) continue;
    fail(
        ErrorCode::Aborted,
        fmt::format("the gradient of '{}' was changed (clipped?) while it was accumulated and not averaged; clip after "
                    "the backward that averages, by paceline::clip_grad_norm()",
                    parameters[index].name));
  }
}

// A hash of a few elements of a gradient: what scales all of it changes one that is not zero. (Libtorch's clipping goes
// past version counters.) 0 of one whose memory does not show its values.
std::uint64_t DistributedDataParallel::State::probe(std::size_t index) const {
  constexpr std::size_t kElements = 8;
  const torch::Tensor& gradient = parameters[index].tensor.grad();
  if (!gradient.defined() || !is_plain(gradient) || !gradient.is_non_overlapping_and_dense()) return 0;
  const auto* data = static_cast<const std::byte*>(gradient.data_ptr());
  const auto count = static_cast<std::size_t>(gradient.numel());
  const auto size = static_cast<std::size_t>(gradient.element_size());
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < kElements && count > 0; ++i) {
    hash = hash_of(std::span(data + i * (count - 1) / (kElements - 1) * size, size), hash);
  }
  return hash;
}

// Undefined, or changed to zeros.
bool DistributedDataParallel::State::was_cleared(std::size_t index) const {
  const torch::Tensor& gradient = parameters[index].tensor.grad();
  if (!gradient.defined()) return true;
  if (gradient.layout() != torch::kStrided || probe(index) == probes[index]) return false;
  return gradient.eq(0).all().item<bool>();
}

// After a backward that reached no hook of this model: one that reached a parameter which has lost its hook left a
// gradient there that nobody averages.
void DistributedDataParallel::State::require_watched() {
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const torch::Tensor& parameter = parameters[index].tensor;
    if (!parameter.requires_grad() || hooks.still_watches(index, parameter)) continue;
    if (parameter.grad().defined() && !(uses_slots && is_in_slot(index))) fail_changed(parameters[index].name);
  }
}

void DistributedDataParallel::State::require_no_graph(std::size_t index) {
  const torch::Tensor& gradient = parameters[index].tensor.grad();
  if (gradient.requires_grad()) {
    fail(ErrorCode::InvalidArgument,
         fmt::format("backward(create_graph=true) reached parameter '{}': an averaged gradient has no graph. Use "
                     "torch::autograd::grad for the inner derivative",
                     parameters[index].name));
  }
}

// The mean of sums over different numbers of backwards is not what anybody wants. Who had none adds zeros.
void DistributedDataParallel::State::require_equal_backwards() {
  if (options.reduction != Reduction::Mean) return;
  const auto all = reducer.prologues();
  const auto counts = [](const StepPrologue& rank) { return rank.backwards > 0; };
  const auto first = std::find_if(all.begin(), all.end(), counts);
  const auto other = std::find_if(
      first, all.end(), [&](const StepPrologue& rank) { return counts(rank) && rank.backwards != first->backwards; });
  if (other == all.end()) return;
  const auto peer = static_cast<int>(other - all.begin());
  comm.fail({ErrorCode::Mismatch,
             fmt::format("rank {} averages the gradients of {} backward(s), but rank {} those of {}: all ranks must "
                         "accumulate equally often, or use Reduction::Weighted",
                         first - all.begin(), first->backwards, peer, other->backwards),
             comm.rank(), peer});
}

void DistributedDataParallel::State::require_still_frozen() {
  if (trained.size() == replica.parameters.size()) return;
  std::size_t next = 0;  // both lists are in the same order
  for (const NamedTensor& parameter : replica.parameters) {
    if (next < trained.size() && trained[next].tensor.is_same(parameter.tensor)) ++next;
    else if (parameter.tensor.requires_grad()) fail_changed(parameter.name);
  }
}

void DistributedDataParallel::State::fail(ErrorCode code, const std::string& what) {
  comm.fail({code, what, comm.rank(), comm.rank()});
}

void DistributedDataParallel::State::fail_abandoned() {
  fail(ErrorCode::Aborted,
       fmt::format("rank {}'s backward() ended before its gradients were averaged, in an exception; nothing may go on "
                   "from there",
                   comm.rank()));
}

void DistributedDataParallel::State::fail_changed(const std::string& name) {
  fail(
      ErrorCode::Aborted,
      fmt::format("parameter '{}' was cast, moved, loaded (torch::load), frozen or unfrozen after its "
                  "module was wrapped (on rank {}), so its gradient is not averaged; load the module and bring it into "
                  "the form in which it is trained before wrapping it",
                  name, comm.rank()));
}

}  // namespace paceline
