// Where gradients lie: slots of the reducer's buckets, in which libtorch computes large ones itself.
#include <algorithm>
#include <atomic>
#include <utility>

#include "paceline/train/ddp/data_parallel_state.h"
#include "paceline/train/plain_tensor.h"

namespace paceline {
namespace {

// A layout that covers its memory without gaps can be a slot's; any other gradient is kept contiguous, as libtorch
// does.
std::vector<std::int64_t> slot_strides(const torch::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return torch::empty(parameter.sizes(), torch::kMeta).strides().vec();
}

}  // namespace

void DistributedDataParallel::State::bind_slot(std::size_t index) {
  const torch::Tensor& parameter = parameters[index].tensor;
  const Reducer::SlotMemory memory = reducer.slot(index);
  // Not a view of the bucket: libtorch's zero_grad() detaches in place, which views refuse.
  slots[index] = torch::from_blob(
      memory.data, parameter.sizes(), slot_strides(parameter), [owner = memory.owner](void*) {},
      parameter.options().requires_grad(false));
}

void DistributedDataParallel::State::bind_slots() {
  slots.resize(parameters.size());
  lendable.resize(parameters.size());
  lending_order.clear();
  for (const BucketPlan::Bucket& bucket : reducer.plan().buckets) {
    for (const std::size_t index : bucket.parameters) {
      const Reducer::SlotMemory memory = reducer.slot(index);
      if (!slots[index].defined() || slots[index].data_ptr() != memory.data) bind_slot(index);
      if (!reducer.alone(index)) {
        lendable[index] = nullptr;
        continue;
      }
      // Memory that stayed may be lent still.
      if (lendable[index].get() != memory.data) lendable[index] = {memory.data, [owner = memory.owner](std::byte*) {}};
      lending_order.emplace_back(slots[index].nbytes(), index);
    }
  }
}

void DistributedDataParallel::State::move_gradients() {
  const std::vector<torch::Tensor> old = slots;
  bind_slots();
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    torch::Tensor& gradient = parameters[index].tensor.mutable_grad();
    if (gradient.defined() && gradient.layout() == torch::kStrided && gradient.is_alias_of(old[index])) {
      gradient = slots[index];
    }
  }
}

bool DistributedDataParallel::State::is_in_slot(std::size_t index) const {
  const torch::Tensor& gradient = parameters[index].tensor.grad();
  return gradient.layout() == torch::kStrided && gradient.is_alias_of(slots[index]);
}

// Byte for byte what the slot is to hold.
bool DistributedDataParallel::State::is_laid_out_like_slot(std::size_t index) const {
  const torch::Tensor& gradient = parameters[index].tensor.grad();
  return is_plain(gradient) && gradient.strides() == slots[index].strides() &&
         gradient.scalar_type() == slots[index].scalar_type();
}

// A gradient whose node was lent the slot's memory lies there already, and grad() becomes the slot's tensor. If other
// tensors share its storage it stays apart, to be copied: they may be gradients that are yet to come.
void DistributedDataParallel::State::recognize_slot(std::size_t index, const torch::Tensor& given) {
  torch::Tensor& gradient = parameters[index].tensor.mutable_grad();
  if (!lendable[index] || !is_laid_out_like_slot(index) || is_in_slot(index)) return;
  if (gradient.data_ptr() != slots[index].data_ptr() || gradient.requires_grad()) return;
  if (compat::is_only_use(gradient, given)) gradient = slots[index];
}

// What a node asks for by its size may become the gradient of a parameter of that size: of the first that is still to
// come. If it becomes something else, reclaim_slot() sees that.
std::shared_ptr<std::byte> DistributedDataParallel::State::lend(std::size_t bytes) {
  for (const auto& [size, index] : lending_order) {
    if (size != bytes || !lendable[index] || lendable[index].use_count() > 1) continue;
    if ((in_backward && arrived[index]) || parameters[index].tensor.grad().defined()) continue;
    if (compat::is_held(slots[index])) continue;
    std::atomic_thread_fence(std::memory_order_acquire);  // what its last user did, perhaps on another thread
    return lendable[index];
  }
  return nullptr;
}

// Before something is written to the slot of a gradient that was not computed there. If another tensor was and still
// lives, it keeps that memory. It might do so in each step, so nothing is lent for this parameter any more.
void DistributedDataParallel::State::reclaim_slot(std::size_t index) {
  leave_to_holders(index);
  if (!lendable[index] || lendable[index].use_count() == 1) return;
  lendable[index] = nullptr;
  reducer.renew(index);
  bind_slot(index);
}

// A gradient that the user kept beyond zero_grad() stays what it was, as libtorch would leave it: whoever holds the
// slot's tensor or a view of it gets a copy of its memory, and the slot another tensor. (One that is still grad() is
// changed in place, for libtorch as well.)
void DistributedDataParallel::State::leave_to_holders(std::size_t index) {
  if (!compat::is_held(slots[index])) return;
  compat::take_private_copy(slots[index]);
  bind_slot(index);
}

// Of any layout. A sparse gradient becomes a dense one: its places differ by rank. What the user has put in grad()
// stays there; the result is brought back.
void DistributedDataParallel::State::bring_to_slot(std::size_t index) {
  require_no_graph(index);
  const torch::NoGradGuard no_grad;
  torch::Tensor& gradient = parameters[index].tensor.mutable_grad();
  reclaim_slot(index);
  if (gradient.layout() == torch::kStrided) slots[index].copy_(gradient);
  else slots[index].zero_().add_(gradient);
  if (!users_own[index]) gradient = slots[index];
}

// In a world of one, where libtorch's gradients stay: a sparse one becomes dense, as with more ranks.
void DistributedDataParallel::State::keep_dense() {
  for (const NamedTensor& parameter : parameters) {
    torch::Tensor& gradient = parameter.tensor.mutable_grad();
    if (gradient.defined() && gradient.layout() == torch::kSparse) gradient = gradient.to_dense();
  }
}

// Before a backward adds to gradients: those that are there and not in their slots are memory that the user has put
// there, e.g. views of one flat tensor. What a dropped step took from there comes back, unless there is something else.
void DistributedDataParallel::State::look_at_gradients() {
  const torch::NoGradGuard no_grad;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    torch::Tensor& gradient = parameters[index].tensor.mutable_grad();
    if (set_aside[index].defined()) {
      torch::Tensor aside = std::exchange(set_aside[index], {});
      if (!gradient.defined()) gradient = aside.zero_();
    }
    users_own[index] = gradient.defined() && gradient.layout() == torch::kStrided && !is_in_slot(index);
  }
  forget_cleared();
}

// If everything that was accumulated has been cleared since, it counts no longer.
void DistributedDataParallel::State::forget_cleared() {
  if (backwards == 0) return;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    if (pending[index] && !was_cleared(index)) return;
  }
  std::fill(pending.begin(), pending.end(), 0);
  backwards = 0;
  weight = 0;
}

}  // namespace paceline
