#pragma once

#include <cstddef>
#include <span>

#include "paceline/tools/bench/collectives.h"
#include "paceline/tools/bench/layout.h"
#include "paceline/tools/bench/pattern.h"

namespace paceline::tools {

/// How many elements of `output`, this rank's whole result of one call on inputs of `pattern`, are wrong.
std::size_t count_wrong(const CollectiveTraits& traits, const BenchRow& row, const Pattern& pattern, const Seat& seat,
                        std::span<const std::byte> output);

}  // namespace paceline::tools
