#pragma once

#include <cstddef>
#include <span>

#include "paceline/tools/bench/options.h"
#include "paceline/tools/bench/plan.h"

namespace paceline::tools {

/// A rank among others.
struct Seat {
  int rank = 0;
  int world_size = 1;
  int root = 0;
};

/// One rank's operands; empty where it has none.
struct OperandSpans {
  std::span<std::byte> in, out;
};

/// Where the operands of rank `seat.rank` lie in its two buffers, of `row.bytes` at least: both in the first for calls
/// in place, the result in the second for others.
OperandSpans operands_in(std::byte* first, std::byte* second, const BenchOptions& options, const BenchRow& row,
                         const Seat& seat);

}  // namespace paceline::tools
