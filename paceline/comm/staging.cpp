#include "paceline/comm/staging.h"

#include <algorithm>
#include <cstring>

namespace paceline::staged {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{1} << 20;

std::byte* staging(Comm::State& comm) {
  if (comm.staging.bytes() == 0) comm.staging = comm.engine->allocate(kStagingBytes);
  return comm.staging.data();
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

/// Calls `piece(first, count)` for consecutive pieces of operation.count elements, each so small that `parts` of it fit
/// the staging buffer; once, with 0, for an empty call.
template <class Piece>
void for_each_piece(const Operation& operation, std::size_t parts, Piece&& piece) {
  const std::size_t line = 64;
  const std::size_t most = std::max<std::size_t>(1, kStagingBytes / (parts * size_of(operation.dtype)) / line * line);
  std::size_t first = 0;
  do {
    const std::size_t count = std::min(most, operation.count - first);
    piece(first, count);
    first += count;
  } while (first < operation.count);
}

Operation part_of(const Operation& operation, std::size_t count) {
  Operation part = operation;
  part.count = count;
  part.call_count = operation.count;
  return part;
}

}  // namespace

void all_reduce(Comm::State& comm, const Operation& operation) {
  const std::size_t size = size_of(operation.dtype);
  if (comm.engine->reaches_all()) return comm.carry_out(operation);
  const bool in_place = comm.engine->reaches(operation.in, operation.count * size);
  for_each_piece(operation, 1, [&](std::size_t first, std::size_t count) {
    Operation part = part_of(operation, count);
    part.in = part.out = in_place ? operation.out + first * size : staging(comm);
    if (!in_place) copy_bytes(part.out, operation.in + first * size, count * size);
    comm.carry_out(part);
    if (!in_place) copy_bytes(operation.out + first * size, part.out, count * size);
  });
}

void broadcast(Comm::State& comm, const Operation& operation) {
  const std::size_t size = size_of(operation.dtype);
  if (comm.engine->reaches_all()) return comm.carry_out(operation);
  const bool in_place = comm.engine->reaches(operation.in, operation.count * size);
  const bool root = comm.rank == operation.root;
  for_each_piece(operation, 1, [&](std::size_t first, std::size_t count) {
    Operation part = part_of(operation, count);
    part.in = part.out = in_place ? operation.out + first * size : staging(comm);
    if (root && !in_place) copy_bytes(part.out, operation.in + first * size, count * size);
    comm.carry_out(part);
    if (!root && !in_place) copy_bytes(operation.out + first * size, part.out, count * size);
  });
}

void reduce_scatter(Comm::State& comm, const Operation& operation) {
  const std::size_t size = size_of(operation.dtype);
  const auto world = static_cast<std::size_t>(comm.world_size);
  if (comm.engine->reaches_all()) return comm.carry_out(operation);
  for_each_piece(operation, world, [&](std::size_t first, std::size_t count) {
    Operation part = part_of(operation, count);
    std::byte* stage = staging(comm);
    for (std::size_t peer = 0; peer < world; ++peer) {
      copy_bytes(stage + peer * count * size, operation.in + (peer * operation.count + first) * size, count * size);
    }
    part.in = stage;
    part.out = operation.out + first * size;
    comm.carry_out(part);
  });
}

void all_gather(Comm::State& comm, const Operation& operation) {
  const std::size_t size = size_of(operation.dtype);
  const auto world = static_cast<std::size_t>(comm.world_size);
  if (comm.engine->reaches_all()) return comm.carry_out(operation);
  // A piece of every rank's part, next to this rank's own piece.
  for_each_piece(operation, world + 1, [&](std::size_t first, std::size_t count) {
    Operation part = part_of(operation, count);
    std::byte* own = staging(comm);
    std::byte* all = own + count * size;
    copy_bytes(own, operation.in + first * size, count * size);
    part.in = own;
    part.out = all;
    comm.carry_out(part);
    for (std::size_t peer = 0; peer < world; ++peer) {
      copy_bytes(operation.out + (peer * operation.count + first) * size, all + peer * count * size, count * size);
    }
  });
}

}  // namespace paceline::staged
