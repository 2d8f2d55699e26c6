#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/tools/bench/options.h"
#include "paceline/tools/bench/plan.h"
#include "paceline/tools/bench/samples.h"

namespace paceline::tools {

/// The figures of one row. Times are of one call, of the slowest rank.
struct BenchResult {
  BenchRow row;
  std::string algorithm;
  std::size_t samples = 0;
  std::size_t batch = 1;
  double p50_us = 0;
  double p99_us = 0;
  double algbw_gbps = 0;  ///< 1e9 bytes a second.
  double busbw_gbps = 0;
  std::optional<std::uint64_t> wrong;
  std::optional<double> roofline_us;
  std::optional<double> roofline_fraction;  ///< Of the roofline's time and this one's.
  double skew_us = 0;
  double context_switches = 0;  ///< Of all ranks, a call.
};

BenchResult summarize(const BenchOptions& options, const BenchRow& row, const RowSamples& samples, int world_size,
                      int cores);

/// The least value that at least `share` of all values do not exceed (nearest rank). `values` is not empty.
double quantile(std::vector<double> values, double share);
/// For each sample, the largest of all ranks.
std::vector<double> slowest_rank(std::span<const std::int64_t> of_ranks, int world_size);
/// For each sample, how far first and last rank are apart.
std::vector<double> apart(std::span<const std::int64_t> of_ranks, int world_size);
/// For each sample, how long all shares take on `cores`: the slowest rank's duration, but where ranks outnumber cores
/// they take turns, so the sum of their processor time, spread over the cores.
std::vector<double> roofline_times(const RooflineSamples& samples, int world_size, int cores);

}  // namespace paceline::tools
