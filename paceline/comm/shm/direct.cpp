#include "paceline/comm/shm/direct.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "paceline/base/bytes.h"
#include "paceline/base/error.h"
#include "paceline/base/kernels.h"
#include "paceline/comm/signature.h"
#include "paceline/comm/slices.h"

namespace paceline {
namespace {

const ShmOperands& operands_of(const Slot& slot) { return *reinterpret_cast<const ShmOperands*>(slot.payload); }

std::span<const std::uint64_t> sent_counts(const Slot& slot, int world_size) {
  return {reinterpret_cast<const std::uint64_t*>(slot.payload + sizeof(ShmOperands)),
          static_cast<std::size_t>(world_size)};
}

bool has_own_counts(const Operation& operation) {
  return operation.kind == Collective::AllToAll && !operation.counts.empty();
}

}  // namespace

/// One rank's operands, as addresses here.
struct ShmDirect::Peer {
  std::byte* in;
  std::byte* out;
  std::size_t in_stride, out_stride;  // bytes; for even parts
  std::span<const std::size_t> counts;
  std::size_t size;

  std::byte* in_part(int part) const { return in + begin(part, in_stride); }
  std::byte* out_part(int part) const { return out + begin(part, out_stride); }
  std::size_t begin(int part, std::size_t stride) const {
    if (counts.empty()) return stride * static_cast<std::size_t>(part);
    return std::accumulate(counts.begin(), counts.begin() + part, std::size_t{0}) * size;
  }
};

void ShmDirect::put_operands(const Operation& operation, Slot& slot) const {
  const auto offset = [&](const std::byte* at) {
    return std::uint64_t{view_.segments[view_.rank]->offset_of(at).value_or(0)};
  };
  const auto stride = [&](std::size_t given) { return given != 0 ? given : operation.count; };
  // All of it before the first write: a peer that polls the slot takes its cache lines away after each.
  const std::uint64_t in = offset(operation.in), out = operation.out == operation.in ? in : offset(operation.out);
  const ShmOperands own{in,
                        out,
                        stride(operation.in_stride),
                        stride(operation.out_stride),
                        operation.reach,
                        balance_of(operation, view_.rank)};
  auto& operands = *reinterpret_cast<ShmOperands*>(slot.payload);
  operands = own;
  if (!has_own_counts(operation)) return;
  const std::size_t bytes = operation.counts.size_bytes();
  if (sizeof operands + bytes > Slot::kPayloadBytes) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("an uneven all_to_all in shared memory takes at most {} ranks",
                            (Slot::kPayloadBytes - sizeof operands) / sizeof(std::uint64_t)));
  }
  std::memcpy(slot.payload + sizeof operands, operation.counts.data(), bytes);
}

std::size_t ShmDirect::common_reach(const Operation& operation, std::uint64_t number) const {
  std::size_t reach = operation.count;
  for (int rank = 0; rank < view_.world_size(); ++rank) {
    const std::size_t theirs = operands_of(view_.slot(rank, number)).reach;
    if (theirs != 0) reach = std::min(reach, theirs);
  }
  return reach;
}

ShmDirect::Peer ShmDirect::peer(const Operation& operation, int rank, std::uint64_t number) const {
  const ShmOperands& operands = operands_of(view_.slot(rank, number));
  const std::size_t size = size_of(operation.dtype);
  return {view_.segments[rank]->at(operands.in_offset),
          view_.segments[rank]->at(operands.out_offset),
          operands.in_stride * size,
          operands.out_stride * size,
          operation.counts,
          size};
}

void ShmDirect::do_share(const Operation& operation, std::uint64_t number, std::size_t reach) {
  const int rank = view_.rank;
  const Peer own = peer(operation, rank, number);
  const Peer root = peer(operation, operation.root, number);
  switch (operation.kind) {
    case Collective::Barrier: return;
    case Collective::AllReduce:
    case Collective::Reduce: {
      const Slice slice = slice_of(reach, operation.dtype, rank, view_.world_size());
      return reduce_range(operation, number, slice.begin, slice.count);
    }
    case Collective::ReduceScatter: return reduce_scatter(operation, number, reach);
    case Collective::AllGather:
      for (int from = 0; from < view_.world_size(); ++from) {
        copy_bytes(own.out_part(from), peer(operation, from, number).in, part_bytes(operation, from, reach));
      }
      return;
    case Collective::Broadcast:
      if (rank != operation.root) copy_bytes(own.out, root.in, reach * own.size);
      return;
    case Collective::Gather: return copy_bytes(root.out_part(rank), own.in, part_bytes(operation, rank, reach));
    case Collective::Scatter: return copy_bytes(own.out, root.in_part(rank), part_bytes(operation, rank, reach));
    case Collective::AllToAll: return all_to_all(operation, number, reach);
  }
}

void ShmDirect::reduce_range(const Operation& operation, std::uint64_t number, std::size_t from, std::size_t count) {
  const std::size_t offset = from * size_of(operation.dtype);
  sources_.clear();
  destinations_.clear();
  for (int rank = 0; rank < view_.world_size(); ++rank) {
    const Peer one = peer(operation, rank, number);
    sources_.push_back(one.in + offset);
    if (operation.kind == Collective::AllReduce || rank == operation.root) destinations_.push_back(one.out + offset);
  }
  reduce_to(operation, number, count);
}

void ShmDirect::reduce_scatter(const Operation& operation, std::uint64_t number, std::size_t reach) {
  sources_.clear();
  for (int rank = 0; rank < view_.world_size(); ++rank) {
    sources_.push_back(peer(operation, rank, number).in_part(view_.rank));
  }
  destinations_.assign(1, peer(operation, view_.rank, number).out);
  reduce_to(operation, number, operation.counts.empty() ? reach : operation.counts[view_.rank]);
}

void ShmDirect::reduce_to(const Operation& operation, std::uint64_t number, std::size_t count) {
  weights_.clear();
  if (operation.reduce == ReduceOp::Mean) {
    for (int rank = 0; rank < view_.world_size(); ++rank) weights_.push_back(view_.slot(rank, number).weight);
  }
  reduce(operation.reduce, operation.dtype, sources_, destinations_, count, weights_);
}

void ShmDirect::all_to_all(const Operation& operation, std::uint64_t number, std::size_t reach) const {
  if (operation.in == operation.out && operation.counts.empty()) return swap_parts(operation, number, reach);
  const int rank = view_.rank;
  Peer own = peer(operation, rank, number);
  own.counts = operation.receive_counts;
  // Ranks begin with different peers, so that not all read from the same one.
  for (int step = 0; step < view_.world_size(); ++step) {
    const int from = (rank + step) % view_.world_size();
    Peer theirs = peer(operation, from, number);
    if (has_own_counts(operation)) theirs.counts = sent_counts(view_.slot(from, number), view_.world_size());
    const std::size_t bytes = has_own_counts(operation) ? operation.receive_counts[from] * own.size : reach * own.size;
    copy_bytes(own.out_part(from), theirs.in_part(rank), bytes);
  }
}

// In place, two ranks' parts change places; one of the two does it for both.
void ShmDirect::swap_parts(const Operation& operation, std::uint64_t number, std::size_t reach) const {
  const int rank = view_.rank;
  const Peer own = peer(operation, rank, number);
  for (int other = 0; other < view_.world_size(); ++other) {
    const int doer = (rank + other) % 2 == 0 ? std::min(rank, other) : std::max(rank, other);
    if (other == rank || doer != rank) continue;
    std::byte* ours = own.in_part(other);
    std::swap_ranges(ours, ours + reach * own.size, peer(operation, other, number).in_part(rank));
  }
}

bool ShmDirect::counts_agree(const Operation& operation, std::uint64_t number) const {
  if (!has_own_counts(operation)) return true;
  std::uint64_t sum = 0;
  for (int rank = 0; rank < view_.world_size(); ++rank) sum += operands_of(view_.slot(rank, number)).balance;
  return sum == 0;
}

void ShmDirect::check_counts(const Operation& operation, std::uint64_t number) const {
  for (int from = 0; from < view_.world_size(); ++from) {
    const std::size_t sent = sent_counts(view_.slot(from, number), view_.world_size())[view_.rank];
    if (sent == operation.receive_counts[from]) continue;
    throw Error(ErrorCode::Mismatch,
                fmt::format("all_to_all #{}: rank {} sends {} elements to rank {}, which expects {}. No data was moved",
                            number, from, sent, view_.rank, operation.receive_counts[from]),
                view_.rank, from);
  }
}

std::size_t ShmDirect::part_bytes(const Operation& operation, int part, std::size_t reach) const {
  return (operation.counts.empty() ? reach : operation.counts[part]) * size_of(operation.dtype);
}

}  // namespace paceline
