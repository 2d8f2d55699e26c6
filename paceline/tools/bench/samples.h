#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace paceline::tools {

// What was measured, the same on all ranks. Of several ranks: rank 0's samples, then rank 1's, and so on.

/// A sample is `batch` calls, one after the other.
struct OperationSamples {
  std::size_t batch = 1;
  std::vector<std::int64_t> entered_ns;   ///< When the rank began, by a clock that all ranks share.
  std::vector<std::int64_t> duration_ns;  ///< Of the rank's own calls.
  std::int64_t context_switches = 0;      ///< Of all ranks, in all samples.
};

struct RooflineSamples {
  std::size_t batch = 1;
  std::vector<std::int64_t> duration_ns;
  std::vector<std::int64_t> cpu_ns;  ///< Processor time in it.
};

struct RowSamples {
  OperationSamples operation;
  std::optional<RooflineSamples> roofline;
  std::optional<std::uint64_t> wrong;  ///< Elements, of all ranks; nothing if not checked.
};

}  // namespace paceline::tools
