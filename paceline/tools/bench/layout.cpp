#include "paceline/tools/bench/layout.h"

namespace paceline::tools {

OperandSpans operands_in(std::byte* first, std::byte* second, const BenchOptions& options, const BenchRow& row,
                         const Seat& seat) {
  const CollectiveTraits& traits = *options.collective;
  const std::size_t call_bytes = row.count * size_of(options.dtype);
  const bool in_place = row.place == Place::InPlace;
  // In place, a part lies where it is in the whole.
  const std::size_t part_begin = in_place ? call_bytes * static_cast<std::size_t>(seat.rank) : 0;
  const auto lie = [&](std::byte* memory, Extent extent, bool on_root) -> std::span<std::byte> {
    if (on_root && seat.rank != seat.root) return {};
    if (extent == Extent::Total) return {memory, row.bytes};
    return {memory + part_begin, call_bytes};
  };
  return {lie(first, traits.in, traits.in_on_root), lie(in_place ? first : second, traits.out, traits.out_on_root)};
}

}  // namespace paceline::tools
