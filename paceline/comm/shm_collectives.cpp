#include "paceline/comm/shm_collectives.h"

#include <algorithm>
#include <cstring>

#include "paceline/base/kernels.h"
#include "paceline/comm/slices.h"

namespace paceline {

void ShmCollectives::do_share(const Operation& operation, std::uint64_t number) {
  switch (operation.kind) {
    case Collective::AllReduce: return all_reduce(operation, number);
    case Collective::ReduceScatter:
      destinations_.assign(1, operation.out);
      return reduce_part(operation, number, operation.count * static_cast<std::size_t>(group_.rank), operation.count);
    case Collective::AllGather: return all_gather(operation, number);
    case Collective::Broadcast: return broadcast(operation, number);
    default: return;
  }
}

std::size_t ShmCollectives::input_bytes(const Operation& operation, int world_size) {
  const std::size_t parts = operation.kind == Collective::ReduceScatter ? static_cast<std::size_t>(world_size) : 1;
  return operation.count * parts * size_of(operation.dtype);
}

bool ShmCollectives::is_inline(const Operation& operation, int world_size) {
  return input_bytes(operation, world_size) <= Slot::kInlineBytes;
}

void ShmCollectives::all_reduce(const Operation& operation, std::uint64_t number) {
  if (is_inline(operation, group_.world_size())) {
    destinations_.assign(1, operation.out);
    return reduce_part(operation, number, 0, operation.count);
  }
  const Slice slice = slice_of(operation.count, operation.dtype, group_.rank, group_.world_size());
  const std::size_t offset = slice.begin * size_of(operation.dtype);
  destinations_.clear();
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    destinations_.push_back(const_cast<std::byte*>(input(peer, number)) + offset);
  }
  reduce_part(operation, number, slice.begin, slice.count);
}

void ShmCollectives::reduce_part(const Operation& operation, std::uint64_t number, std::size_t from,
                                 std::size_t count) {
  sources_.clear();
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    sources_.push_back(input(peer, number) + from * size_of(operation.dtype));
  }
  gather_weights(operation, number);
  reduce(operation.reduce, operation.dtype, sources_, destinations_, count, weights_);
}

void ShmCollectives::gather_weights(const Operation& operation, std::uint64_t number) {
  weights_.clear();
  if (operation.reduce != ReduceOp::Mean) return;
  for (int peer = 0; peer < group_.world_size(); ++peer) weights_.push_back(group_.control(peer).slot(number).weight);
}

void ShmCollectives::all_gather(const Operation& operation, std::uint64_t number) const {
  const std::size_t bytes = operation.count * size_of(operation.dtype);
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    std::byte* to = operation.out + bytes * static_cast<std::size_t>(peer);
    const std::byte* from = input(peer, number);
    if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
  }
}

void ShmCollectives::broadcast(const Operation& operation, std::uint64_t number) const {
  const std::size_t bytes = operation.count * size_of(operation.dtype);
  if (bytes > 0 && group_.rank != operation.root) std::memcpy(operation.out, input(operation.root, number), bytes);
}

const std::byte* ShmCollectives::input(int peer, std::uint64_t number) const {
  const Slot& slot = group_.control(peer).slot(number);
  return slot.in_offset == Slot::kInline ? slot.payload : group_.segments[peer]->data() + slot.in_offset;
}

}  // namespace paceline
