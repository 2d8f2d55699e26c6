#include "paceline/comm/shm/one_shot.h"

#include <algorithm>
#include <cstring>

#include "paceline/base/bytes.h"
#include "paceline/base/kernels.h"

namespace paceline {
namespace {

std::size_t largest_part(const Operation& operation) {
  if (operation.counts.empty()) return operation.count;
  return *std::max_element(operation.counts.begin(), operation.counts.end());
}

// Elements that the rank with the most of them puts in, of a kind with parts: those lie close in a slot.
std::size_t largest_input(const Operation& operation, int world_size) {
  switch (operation.kind) {
    case Collective::AllGather:
    case Collective::Gather: return largest_part(operation);
    case Collective::ReduceScatter:
    case Collective::Scatter:
    case Collective::AllToAll:
      if (operation.counts.empty()) return operation.count * static_cast<std::size_t>(world_size);
      return in_part_begin(operation, world_size - 1) + in_part_count(operation, world_size - 1);
    default: return operation.count;
  }
}

// Where a part begins in a slot.
std::size_t packed_begin(const Operation& operation, int part) {
  Operation packed = operation;
  packed.in_stride = 0;
  return in_part_begin(packed, part);
}

}  // namespace

bool ShmOneShot::fits(const Operation& operation, int world_size, std::size_t bytes) {
  if (!has_parts(operation.kind)) return operation.count <= bytes / size_of(operation.dtype);
  // In an uneven all_to_all, ranks do not know what others send.
  if (operation.kind == Collective::AllToAll && !operation.counts.empty()) return false;
  return largest_input(operation, world_size) <= bytes / size_of(operation.dtype);
}

void ShmOneShot::put_input(const Operation& operation, Slot& slot) const {
  const std::size_t size = size_of(operation.dtype);
  if (operation.kind == Collective::AllReduce) return copy_bytes(slot.payload, operation.in, operation.count * size);
  const std::size_t extent = in_extent(operation, view_.rank, view_.world_size());
  if (!has_parts(operation.kind) || operation.in_stride == 0 || extent == 0) {
    return copy_bytes(slot.payload, operation.in, extent * size);
  }
  if (operation.kind == Collective::AllGather || operation.kind == Collective::Gather) {
    return copy_bytes(slot.payload, operation.in, operation.count * size);
  }
  for (int part = 0; part < view_.world_size(); ++part) {
    copy_bytes(slot.payload + packed_begin(operation, part) * size,
               operation.in + in_part_begin(operation, part) * size, in_part_count(operation, part) * size);
  }
}

void ShmOneShot::finish(const Operation& operation, std::uint64_t number) {
  if (operation.kind == Collective::AllReduce) return reduce_inputs(operation, number, 0, operation.count);
  const std::size_t size = size_of(operation.dtype);
  const int rank = view_.rank;
  const bool is_root = rank == operation.root;
  const auto copy_part = [&](std::byte* to, int of, int part) {
    copy_bytes(to, input(of, number) + packed_begin(operation, part) * size, in_part_count(operation, part) * size);
  };
  const auto gather_inputs = [&] {
    for (int peer = 0; peer < view_.world_size(); ++peer) {
      copy_bytes(operation.out + out_part_begin(operation, peer) * size, input(peer, number),
                 out_part_count(operation, peer) * size);
    }
  };
  switch (operation.kind) {
    case Collective::Barrier:
    case Collective::AllReduce: return;
    case Collective::Reduce:
      if (is_root) reduce_inputs(operation, number, 0, operation.count);
      return;
    case Collective::ReduceScatter:
      return reduce_inputs(operation, number, packed_begin(operation, rank), in_part_count(operation, rank));
    case Collective::AllGather: return gather_inputs();
    case Collective::Gather:
      if (is_root) gather_inputs();
      return;
    case Collective::Broadcast:
      if (!is_root) copy_bytes(operation.out, input(operation.root, number), operation.count * size);
      return;
    case Collective::Scatter: return copy_part(operation.out, operation.root, rank);
    case Collective::AllToAll:
      for (int peer = 0; peer < view_.world_size(); ++peer) {
        copy_part(operation.out + out_part_begin(operation, peer) * size, peer, rank);
      }
      return;
  }
}

void ShmOneShot::reduce_inputs(const Operation& operation, std::uint64_t number, std::size_t from, std::size_t count) {
  const std::size_t world = sources_.size();
  const std::size_t offset = from * size_of(operation.dtype);
  for (std::size_t peer = 0; peer < world; ++peer) {
    const Slot& slot = view_.slot(static_cast<int>(peer), number);
    sources_[peer] = slot.payload + offset;
    weights_[peer] = slot.weight;
  }
  // Not what was just written to the slot, while it is still on its way there.
  if (operation.in_stride == 0) sources_[static_cast<std::size_t>(view_.rank)] = operation.in + offset;
  std::byte* const destinations[] = {operation.out};
  const bool mean = operation.reduce == ReduceOp::Mean;
  reduce(operation.reduce, operation.dtype, sources_, destinations, count,
         mean ? std::span<const double>(weights_) : std::span<const double>());
}

}  // namespace paceline
