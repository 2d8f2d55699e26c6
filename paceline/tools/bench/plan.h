#pragma once

#include <cstddef>
#include <vector>

#include "paceline/tools/bench/options.h"

namespace paceline::tools {

/// One line of the table: what is measured.
struct BenchRow {
  std::size_t bytes = 0;  ///< The larger operand's.
  std::size_t count = 0;  ///< Elements as the call counts them: of the whole, or of one rank's part.
  Place place = Place::OutOfPlace;
};

/// The rows in the order in which they are measured. Throws InvalidArgument, saying what would do, for options that
/// contradict each other, the collective or the number of ranks.
std::vector<BenchRow> plan_rows(const BenchOptions& options, int world_size);

}  // namespace paceline::tools
