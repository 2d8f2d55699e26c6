#include "paceline/comm/operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>

#include "paceline/base/enumerator.h"
#include "paceline/base/error.h"

namespace paceline {
namespace {

std::size_t part_count(std::span<const std::size_t> counts, std::size_t count, int part) {
  return counts.empty() ? count : counts[static_cast<std::size_t>(part)];
}

std::size_t part_begin(std::span<const std::size_t> counts, std::size_t count, std::size_t stride, int part) {
  if (counts.empty()) return (stride != 0 ? stride : count) * static_cast<std::size_t>(part);
  return std::accumulate(counts.begin(), counts.begin() + part, std::size_t{0});
}

// AllToAll gets what `receive_counts` say; the others have one list.
std::span<const std::size_t> out_counts(const Operation& operation) {
  return operation.kind == Collective::AllToAll ? operation.receive_counts : operation.counts;
}

std::size_t in_parts_extent(const Operation& operation, int world_size) {
  return in_part_begin(operation, world_size - 1) + in_part_count(operation, world_size - 1);
}

std::size_t out_parts_extent(const Operation& operation, int world_size) {
  return out_part_begin(operation, world_size - 1) + out_part_count(operation, world_size - 1);
}

[[noreturn]] void refuse(const Operation& operation, const std::string& why) {
  throw Error(ErrorCode::InvalidArgument, fmt::format("{}: {}", to_string(operation.kind), why));
}

// Elements whose bytes a pointer can still span.
std::size_t most_elements(Dtype dtype) { return PTRDIFF_MAX / size_of(dtype); }

void check_counts(const Operation& operation, std::span<const std::size_t> counts, const char* name, int world_size) {
  if (counts.size() != static_cast<std::size_t>(world_size)) {
    refuse(operation, fmt::format("{} must have one number for each of the {} ranks, but has {}", name, world_size,
                                  counts.size()));
  }
  std::size_t left = most_elements(operation.dtype);
  for (const std::size_t count : counts) {
    if (count > left) refuse(operation, fmt::format("{} add up to more than memory can hold", name));
    left -= count;
  }
}

void check_even(const Operation& operation, int world_size) {
  const std::size_t most = most_elements(operation.dtype);
  const bool parts = has_parts(operation.kind);
  for (const std::size_t stride : {operation.count, operation.in_stride, operation.out_stride}) {
    if (stride <= most && (!parts || stride <= most / static_cast<std::size_t>(world_size))) continue;
    refuse(operation, fmt::format("{} elements are more than memory can hold", stride));
  }
  const auto fits = [&](std::size_t stride) { return stride == 0 || stride >= operation.count; };
  if (!fits(operation.in_stride) || !fits(operation.out_stride)) refuse(operation, "parts must not overlap");
}

void check_uneven(const Operation& operation, int rank, int world_size) {
  const bool all_to_all = operation.kind == Collective::AllToAll;
  if (!has_parts(operation.kind)) refuse(operation, "takes no counts of parts");
  if (operation.in_stride != 0 || operation.out_stride != 0 || operation.reach != 0) {
    refuse(operation, "uneven parts lie side by side");
  }
  check_counts(operation, operation.counts, all_to_all ? "send_counts" : "counts", world_size);
  if (all_to_all) check_counts(operation, operation.receive_counts, "receive_counts", world_size);
  else if (!operation.receive_counts.empty()) refuse(operation, "takes one list of counts");
  const auto own = static_cast<std::size_t>(rank);
  if (all_to_all && operation.counts[own] != operation.receive_counts[own]) {
    refuse(operation, fmt::format("rank {} sends {} elements to itself, but expects {}", rank, operation.counts[own],
                                  operation.receive_counts[own]));
  }
}

void check_operand(const Operation& operation, const char* name, const std::byte* at, std::size_t elements) {
  if (at != nullptr || elements == 0) return;
  refuse(operation, fmt::format("{} is null, but has {} elements", name, elements));
}

/// True for operands that may lie over each other as the table in operation.h says.
bool is_in_place(const Operation& operation, int rank) {
  const auto in_part = [&] { return operation.in + in_part_begin(operation, rank) * size_of(operation.dtype); };
  const auto out_part = [&] { return operation.out + out_part_begin(operation, rank) * size_of(operation.dtype); };
  switch (operation.kind) {
    case Collective::AllReduce:
    case Collective::Reduce:
    case Collective::Broadcast: return operation.in == operation.out;
    case Collective::AllToAll: return operation.in == operation.out && operation.counts.empty();
    case Collective::ReduceScatter:
    case Collective::Scatter: return operation.out == in_part();
    case Collective::AllGather:
    case Collective::Gather: return operation.in == out_part();
    case Collective::Barrier: return true;
  }
  return false;
}

void check_overlap(const Operation& operation, int rank, int world_size) {
  const std::size_t in_bytes = in_extent(operation, rank, world_size) * size_of(operation.dtype);
  const std::size_t out_bytes = out_extent(operation, rank, world_size) * size_of(operation.dtype);
  if (in_bytes == 0 || out_bytes == 0) return;
  const std::less<const std::byte*> before;
  const bool overlap =
      before(operation.in, operation.out + out_bytes) && before(operation.out, operation.in + in_bytes);
  if (overlap && !is_in_place(operation, rank)) {
    refuse(operation,
           "in and out overlap in a way that is not one of the in-place forms (comm/operation.h lists them)");
  }
}

}  // namespace

void check_operation(const Operation& operation, int rank, int world_size) {
  require_enumerator("dtype", operation.dtype, Dtype::UInt8);
  require_enumerator("op", operation.reduce, ReduceOp::Max);
  if (has_root(operation.kind) && (operation.root < 0 || operation.root >= world_size)) {
    refuse(operation, fmt::format("there is no rank {} in a world of {}", operation.root, world_size));
  }
  if (!operation.counts.empty() || !operation.receive_counts.empty()) check_uneven(operation, rank, world_size);
  else check_even(operation, world_size);
  if (operation.reach != 0) refuse(operation, "reach is for the pieces that a call is cut into");
  if (!(operation.weight >= 0 && operation.weight <= std::numeric_limits<double>::max())) {
    refuse(operation, fmt::format("a weight of {} is no share of a mean: it must be 0 or more", operation.weight));
  }
  check_operand(operation, "in", operation.in, in_extent(operation, rank, world_size));
  check_operand(operation, "out", operation.out, out_extent(operation, rank, world_size));
  if (operation.in != operation.out || has_parts(operation.kind)) check_overlap(operation, rank, world_size);
}

std::size_t in_part_count(const Operation& operation, int part) {
  return part_count(operation.counts, operation.count, part);
}

std::size_t out_part_count(const Operation& operation, int part) {
  return part_count(out_counts(operation), operation.count, part);
}

std::size_t in_part_begin(const Operation& operation, int part) {
  return part_begin(operation.counts, operation.count, operation.in_stride, part);
}

std::size_t out_part_begin(const Operation& operation, int part) {
  return part_begin(out_counts(operation), operation.count, operation.out_stride, part);
}

std::size_t in_extent(const Operation& operation, int rank, int world_size) {
  switch (operation.kind) {
    case Collective::Barrier: return 0;
    case Collective::AllReduce:
    case Collective::Reduce: return operation.count;
    case Collective::Broadcast: return rank == operation.root ? operation.count : 0;
    case Collective::Scatter: return rank == operation.root ? in_parts_extent(operation, world_size) : 0;
    case Collective::ReduceScatter:
    case Collective::AllToAll: return in_parts_extent(operation, world_size);
    case Collective::AllGather:
    case Collective::Gather: return in_part_count(operation, rank);
  }
  return 0;
}

std::size_t out_extent(const Operation& operation, int rank, int world_size) {
  switch (operation.kind) {
    case Collective::Barrier: return 0;
    case Collective::AllReduce:
    case Collective::Broadcast: return operation.count;
    case Collective::Reduce: return rank == operation.root ? operation.count : 0;
    case Collective::Gather: return rank == operation.root ? out_parts_extent(operation, world_size) : 0;
    case Collective::AllGather:
    case Collective::AllToAll: return out_parts_extent(operation, world_size);
    case Collective::ReduceScatter:
    case Collective::Scatter: return out_part_count(operation, rank);
  }
  return 0;
}

const char* to_string(Collective collective) {
  switch (collective) {
    case Collective::AllReduce: return "all_reduce";
    case Collective::ReduceScatter: return "reduce_scatter";
    case Collective::AllGather: return "all_gather";
    case Collective::Broadcast: return "broadcast";
    case Collective::Barrier: return "barrier";
    case Collective::Reduce: return "reduce";
    case Collective::Gather: return "gather";
    case Collective::Scatter: return "scatter";
    case Collective::AllToAll: return "all_to_all";
  }
  return "unknown";
}

const char* to_string(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::Auto: return "auto";
    case Algorithm::OneShot: return "one_shot";
    case Algorithm::Slices: return "slices";
    case Algorithm::ChunkQueue: return "chunk_queue";
    case Algorithm::Direct: return "direct";
    case Algorithm::Ring: return "ring";
    case Algorithm::Hierarchical: return "hierarchical";
  }
  return "unknown";
}

}  // namespace paceline
