#include "paceline/observe/metrics.h"

#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "paceline/base/hash.h"

namespace paceline {

void Metrics::mean(const std::string& name, double value, double weight) {
  Total& of_name = total(name, true);
  if (weight == 0) return;
  of_name.value += value * weight;
  of_name.weight += weight;
}

void Metrics::sum(const std::string& name, double value) { total(name, false).value += value; }

std::map<std::string, double> Metrics::over(const Comm& comm) const {
  // Sums of different figures would be of no use.
  std::string names;
  std::vector<double> sums;
  for (const auto& [name, of_name] : totals_) {
    names += fmt::format("{}{}\n", name, of_name.is_mean ? " (mean)" : "");
    sums.push_back(of_name.value);
    sums.push_back(of_name.weight);
  }
  const auto hash = static_cast<std::int64_t>(hash_of(names));
  std::vector<std::int64_t> hashes(static_cast<std::size_t>(comm.world_size()));
  comm.all_gather<std::int64_t>(std::span(&hash, 1), hashes);
  for (std::size_t peer = 1; peer < hashes.size(); ++peer) {
    if (hashes[peer] == hashes[0]) continue;
    const auto texts = comm.gather(names);
    comm.fail(
        {ErrorCode::Mismatch,
         fmt::format("Metrics: rank 0 has the figures {}, but rank {} has {}; all ranks must add to the same ones",
                     texts[0], peer, texts[peer]),
         comm.rank(), static_cast<int>(peer)});
  }
  comm.all_reduce<double>(sums);
  std::map<std::string, double> result;
  std::size_t at = 0;
  for (const auto& [name, of_name] : totals_) {
    result[name] = of_name.is_mean ? sums[at] / sums[at + 1] : sums[at];
    at += 2;
  }
  return result;
}

Metrics::Total& Metrics::total(const std::string& name, bool is_mean) {
  const auto [found, added] = totals_.try_emplace(name, Total{.is_mean = is_mean});
  if (!added && found->second.is_mean != is_mean) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("Metrics: '{}' is both a mean and a sum", name));
  }
  return found->second;
}

}  // namespace paceline
