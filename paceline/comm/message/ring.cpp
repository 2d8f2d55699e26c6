#include "paceline/comm/message/ring.h"

#include <algorithm>

namespace paceline {

Ring::Ring(int rank, int world_size, std::size_t segment_bytes)
    : rank_(rank), world_size_(world_size), rounds_(2 * (world_size - 1)), segment_bytes_(segment_bytes) {}

void Ring::begin(const Operation& operation, std::size_t count, std::span<const double> weights) {
  operation_ = operation;
  count_ = count;
  weights_ = weights;
  if (scratch_.size() < segment_bytes_) scratch_.resize(segment_bytes_);
  out_ = in_ = {};
  advance(out_, 0, 0);
  advance(in_, 1, 0);
}

// Round t sends slice rank - t and receives the one in front of it; gathering goes on in the same sequence.
int Ring::slice_at(int round, int ahead) const { return (rank_ - round - ahead + 2 * world_size_) % world_size_; }

Slice Ring::bytes_of(int slice) const {
  const Slice elements = slice_of(count_, operation_.dtype, slice, world_size_);
  const std::size_t size = size_of(operation_.dtype);
  return {elements.begin * size, elements.count * size};
}

std::size_t Ring::next(const Position& at, const Slice& slice) const {
  return std::min(segment_bytes_, slice.count - at.done);
}

void Ring::advance(Position& at, int ahead, std::size_t bytes) const {
  at.done += bytes;
  while (at.round < rounds_ && at.done == bytes_of(slice_at(at.round, ahead)).count) {
    ++at.round;
    at.done = 0;
  }
}

std::span<const std::byte> Ring::next_outgoing(int peer) {
  if (peer != (rank_ + 1) % world_size_ || out_.round == rounds_) return {};
  const Slice slice = bytes_of(slice_at(out_.round, 0));
  const std::size_t bytes = next(out_, slice);
  // What is sent now came in, and was added to, in the round before.
  const bool there =
      out_.round == 0 || in_.round >= out_.round || (in_.round == out_.round - 1 && in_.done >= out_.done + bytes);
  if (!there) return {};
  const std::byte* from = out_.round == 0 ? operation_.in : operation_.out;
  return {from + slice.begin + out_.done, bytes};
}

void Ring::sent(int) { advance(out_, 0, next(out_, bytes_of(slice_at(out_.round, 0)))); }

std::span<std::byte> Ring::next_incoming(int peer) {
  if (peer != (rank_ + world_size_ - 1) % world_size_ || in_.round == rounds_) return {};
  const Slice slice = bytes_of(slice_at(in_.round, 1));
  std::byte* to = gathers(in_.round) ? operation_.out + slice.begin + in_.done : scratch_.data();
  return {to, next(in_, slice)};
}

void Ring::arrived(int) {
  const Slice slice = bytes_of(slice_at(in_.round, 1));
  const std::size_t bytes = next(in_, slice);
  if (!gathers(in_.round)) add(slice, bytes);
  advance(in_, 1, bytes);
}

void Ring::add(const Slice& slice, std::size_t bytes) {
  const std::size_t at = slice.begin + in_.done;
  const std::byte* const sources[] = {scratch_.data(), operation_.in + at};
  std::byte* const destination[] = {operation_.out + at};
  double weights[] = {0, 0};
  const bool weighted = operation_.reduce == ReduceOp::Mean;
  if (weighted) {
    // The slice began its way at the rank of its number and has passed all up to the one before this.
    for (int passed = 0; passed <= in_.round; ++passed) {
      weights[0] += weights_[static_cast<std::size_t>((slice_at(in_.round, 1) + passed) % world_size_)];
    }
    weights[1] = weights_[static_cast<std::size_t>(rank_)];
  }
  reduce(operation_.reduce, operation_.dtype, sources, destination, bytes / size_of(operation_.dtype),
         weighted ? std::span<const double>(weights) : std::span<const double>());
}

}  // namespace paceline
