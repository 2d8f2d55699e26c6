#include "paceline/tools/bench/statistics.h"

#include <algorithm>
#include <cmath>

namespace paceline::tools {
namespace {

/// Calls `fold(sample, value)` for all ranks' values of each sample.
template <class Fold>
void for_each_value(std::span<const std::int64_t> of_ranks, int world_size, Fold&& fold) {
  const std::size_t samples = of_ranks.size() / static_cast<std::size_t>(world_size);
  for (std::size_t i = 0; i < of_ranks.size(); ++i) fold(i % samples, static_cast<double>(of_ranks[i]));
}

}  // namespace

BenchResult summarize(const BenchOptions& options, const BenchRow& row, const RowSamples& samples, int world_size,
                      int cores) {
  const OperationSamples& operation = samples.operation;
  const auto batch = static_cast<double>(operation.batch);
  const std::vector<double> times = slowest_rank(operation.duration_ns, world_size);
  BenchResult result;
  result.row = row;
  result.samples = times.size();
  result.batch = operation.batch;
  result.wrong = samples.wrong;
  result.p50_us = quantile(times, 0.5) / batch / 1e3;
  result.p99_us = quantile(times, 0.99) / batch / 1e3;
  if (result.p50_us > 0) result.algbw_gbps = static_cast<double>(row.bytes) / (result.p50_us * 1e3);
  result.busbw_gbps = result.algbw_gbps * bus_factor(*options.collective, world_size);
  result.skew_us = quantile(apart(operation.entered_ns, world_size), 0.5) / 1e3;
  result.context_switches =
      static_cast<double>(operation.context_switches) / (static_cast<double>(times.size()) * batch);
  if (samples.roofline) {
    const double time_ns = quantile(roofline_times(*samples.roofline, world_size, cores), 0.5);
    result.roofline_us = time_ns / static_cast<double>(samples.roofline->batch) / 1e3;
    if (result.p50_us > 0) result.roofline_fraction = *result.roofline_us / result.p50_us;
  }
  return result;
}

double quantile(std::vector<double> values, double share) {
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::clamp<std::size_t>(rank, 1, values.size()) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

std::vector<double> slowest_rank(std::span<const std::int64_t> of_ranks, int world_size) {
  std::vector<double> slowest(of_ranks.size() / static_cast<std::size_t>(world_size), 0);
  for_each_value(of_ranks, world_size, [&](std::size_t i, double value) { slowest[i] = std::max(slowest[i], value); });
  return slowest;
}

std::vector<double> apart(std::span<const std::int64_t> of_ranks, int world_size) {
  const std::size_t samples = of_ranks.size() / static_cast<std::size_t>(world_size);
  std::vector<double> distance(samples);
  for (std::size_t i = 0; i < samples; ++i) {
    std::int64_t first = of_ranks[i], last = of_ranks[i];
    for (std::size_t at = i; at < of_ranks.size(); at += samples) {
      first = std::min(first, of_ranks[at]);
      last = std::max(last, of_ranks[at]);
    }
    distance[i] = static_cast<double>(last - first);
  }
  return distance;
}

std::vector<double> roofline_times(const RooflineSamples& samples, int world_size, int cores) {
  if (world_size <= cores) return slowest_rank(samples.duration_ns, world_size);
  std::vector<double> times = slowest_rank(samples.cpu_ns, world_size);
  std::vector<double> sums(times.size(), 0);
  for_each_value(samples.cpu_ns, world_size, [&](std::size_t i, double value) { sums[i] += value; });
  for (std::size_t i = 0; i < times.size(); ++i) times[i] = std::max(times[i], sums[i] / cores);
  return times;
}

}  // namespace paceline::tools
