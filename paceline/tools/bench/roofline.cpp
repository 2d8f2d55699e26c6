#include "paceline/tools/bench/roofline.h"

#include <algorithm>
#include <cstring>

#include "paceline/comm/slices.h"

namespace paceline::tools {

Roofline::Roofline(const Comm& comm, const BenchOptions& options, const BenchOperands& operands)
    : options_(options),
      rank_(comm.rank()),
      world_size_(comm.world_size()),
      first_(comm.map_peers(operands.first())),
      second_(comm.map_peers(operands.second())) {}

Roofline::Share Roofline::share(const BenchRow& row) const {
  Share share;
  share.dtype_ = options_.dtype;
  share.reduce_ = options_.reduce;
  if (options_.collective->reduces) {
    add_reduction(share, row);
  } else {
    add_copies(share, row);
  }
  return share;
}

void Roofline::Share::run() const {
  if (count_ > 0) reduce(reduce_, dtype_, sources_, destinations_, count_, weights_);
  for (const Move& copy : copies_) std::memcpy(copy.to, copy.from, move_bytes_);
  for (const Move& swap : swaps_) std::swap_ranges(swap.from, swap.from + move_bytes_, swap.to);
}

void Roofline::add_reduction(Share& share, const BenchRow& row) const {
  Slice slice{row.count * static_cast<std::size_t>(rank_), row.count};  // this rank's part
  const bool whole = options_.collective->out == Extent::Total;
  if (whole) slice = slice_of(row.count, options_.dtype, rank_, world_size_);
  const std::size_t begin = slice.begin * size_of(options_.dtype);
  share.count_ = slice.count;
  for (int peer = 0; peer < world_size_; ++peer) {
    const OperandSpans operands = of(peer, row);
    share.sources_.push_back(operands.in.data() + begin);
    if (whole && !operands.out.empty()) share.destinations_.push_back(operands.out.data() + begin);
  }
  if (!whole) share.destinations_.push_back(of(rank_, row).out.data());
  if (options_.reduce == ReduceOp::Mean) share.weights_.assign(static_cast<std::size_t>(world_size_), 1);
}

void Roofline::add_copies(Share& share, const BenchRow& row) const {
  const CollectiveTraits& traits = *options_.collective;
  share.move_bytes_ = row.count * size_of(options_.dtype);
  const auto part = [&](std::span<std::byte> parts, int at) {
    return parts.data() + share.move_bytes_ * static_cast<std::size_t>(at);
  };
  const auto add = [&](std::byte* from, std::byte* to) {
    if (from != to) share.copies_.push_back({from, to});
  };
  const OperandSpans own = of(rank_, row), root = of(options_.root, row);
  if (traits.in_on_root) {
    add(traits.parts ? part(root.in, rank_) : root.in.data(), own.out.data());
  } else if (traits.out_on_root) {
    add(own.in.data(), part(root.out, rank_));
  } else if (traits.in == Extent::Part) {
    for (int peer = 0; peer < world_size_; ++peer) add(of(peer, row).in.data(), part(own.out, peer));
  } else if (row.place == Place::OutOfPlace) {
    for (int peer = 0; peer < world_size_; ++peer) add(part(of(peer, row).in, rank_), part(own.out, peer));
  } else {
    for (int peer = 0; peer < world_size_; ++peer) {
      const bool mine = (rank_ + peer) % 2 == 0 ? rank_ < peer : rank_ > peer;  // so that all have as many
      if (mine) share.swaps_.push_back({part(own.in, peer), part(of(peer, row).in, rank_)});
    }
  }
}

OperandSpans Roofline::of(int rank, const BenchRow& row) const {
  const auto at = static_cast<std::size_t>(rank);
  return operands_in(first_[at], second_[at], options_, row, {rank, world_size_, options_.root});
}

}  // namespace paceline::tools
