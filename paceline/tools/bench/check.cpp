#include "paceline/tools/bench/check.h"

namespace paceline::tools {

std::size_t count_wrong(const CollectiveTraits& traits, const BenchRow& row, const Pattern& pattern, const Seat& seat,
                        std::span<const std::byte> output) {
  const std::size_t own_part = row.count * static_cast<std::size_t>(seat.rank);
  if (traits.reduces) return pattern.count_wrong_reduced(output, traits.out == Extent::Part ? own_part : 0);
  if (traits.in_on_root) return pattern.count_different(output, seat.root, traits.out == Extent::Part ? own_part : 0);
  // Parts of all ranks, in rank order: what each had for this rank, or its only one.
  const std::size_t part_bytes = output.size() / static_cast<std::size_t>(seat.world_size);
  std::size_t wrong = 0;
  for (int peer = 0; peer < seat.world_size; ++peer) {
    const auto part = output.subspan(part_bytes * static_cast<std::size_t>(peer), part_bytes);
    wrong += pattern.count_different(part, peer, traits.in == Extent::Part ? 0 : own_part);
  }
  return wrong;
}

}  // namespace paceline::tools
