#include "paceline/tools/bench_roofline.h"

#include <cstring>

#include "paceline/comm/slices.h"

namespace paceline::tools {

RooflineShare::RooflineShare(const BenchOptions& options, const BenchOperands& operands, const BenchRow& row,
                             const Seat& seat)
    : options_(options) {
  if (options.collective->reduces) {
    add_reduction(operands, row, seat);
  } else {
    add_copies(operands, row, seat);
  }
}

void RooflineShare::carry_out() const {
  if (count_ > 0) reduce(options_.reduce, options_.dtype, sources_, destinations_, count_, weights_);
  for (const Copy& copy : copies_) std::memcpy(copy.to, copy.from, copy_bytes_);
}

void RooflineShare::add_reduction(const BenchOperands& operands, const BenchRow& row, const Seat& seat) {
  const CollectiveTraits& traits = *options_.collective;
  const std::size_t element = size_of(options_.dtype);
  std::size_t stride = row.count * element;
  count_ = row.count;
  if (options_.reduce == ReduceOp::Mean) weights_.assign(static_cast<std::size_t>(seat.world_size), 1);
  if (traits.out == Extent::Total) {
    count_ = slice_of(row.count, options_.dtype, seat.rank, seat.world_size).count;
    stride = (slice_of(row.count, options_.dtype, 0, seat.world_size).count * element + 63) / 64 * 64;
  }
  std::byte* out = row.place == Place::InPlace ? operands.first() : operands.second();
  const int receivers = traits.out == Extent::Total && !traits.out_on_root ? seat.world_size : 1;
  for (int peer = 0; peer < seat.world_size; ++peer) {
    sources_.push_back(operands.first() + stride * static_cast<std::size_t>(peer));
  }
  for (int peer = 0; peer < receivers; ++peer) {
    destinations_.push_back(out + stride * static_cast<std::size_t>(peer));
  }
}

void RooflineShare::add_copies(const BenchOperands& operands, const BenchRow& row, const Seat& seat) {
  const CollectiveTraits& traits = *options_.collective;
  const bool in_place = row.place == Place::InPlace;
  copy_bytes_ = row.count * size_of(options_.dtype);
  if (copy_bytes_ == 0) return;
  // Parts that lie where they belong are not copied: the root's of a gather, a rank's own of an all-gather.
  const auto add = [&](int part) {
    const std::size_t offset = copy_bytes_ * static_cast<std::size_t>(part);
    copies_.push_back({operands.second() + offset, operands.first() + offset});
  };
  if (traits.in_on_root || traits.out_on_root) {
    if (seat.rank != seat.root || !in_place) add(traits.parts ? seat.rank : 0);
    return;
  }
  for (int peer = 0; peer < seat.world_size; ++peer) {
    if (peer != seat.rank || !in_place) add(peer);
  }
}

}  // namespace paceline::tools
