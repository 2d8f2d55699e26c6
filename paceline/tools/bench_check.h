#pragma once

#include <cstddef>
#include <span>

#include "paceline/tools/bench_collectives.h"
#include "paceline/tools/bench_pattern.h"
#include "paceline/tools/bench_plan.h"

namespace paceline::tools {

/// Who looks at a result.
struct Seat {
  int rank = 0;
  int world_size = 1;
  int root = 0;
};

/// How many elements of `output`, this rank's whole result of one call on inputs of `pattern`, are wrong.
std::size_t count_wrong(const CollectiveTraits& traits, const BenchRow& row, const Pattern& pattern, const Seat& seat,
                        std::span<const std::byte> output);

}  // namespace paceline::tools
