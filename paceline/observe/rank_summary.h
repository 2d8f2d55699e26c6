#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/observe/breakdown.h"
#include "paceline/observe/findings.h"
#include "paceline/observe/network_facts.h"

namespace paceline {

/// Statistics of the step time, in seconds.
struct StepTimes {
  double mean_s = 0;
  double p50_s = 0;
  double p90_s = 0;
  double p99_s = 0;
};

/// All that one rank tells about its run. Small, whatever the length of the run.
struct RankSummary {
  int rank = 0;
  std::string host{};
  std::int64_t pid = 0;
  int threads = 0;           ///< Compute threads of this rank; 0 when not known.
  std::vector<int> cores{};  ///< Numbers of the cores this process may run on; empty when not known.

  std::uint64_t steps = 0;         ///< Training steps run, warm-up included.
  std::uint64_t warmup_steps = 0;  ///< The first of them, left out of all figures below.
  double samples_per_s = 0;        ///< Samples this rank read / time in its steps; time between steps does not count.
  StepTimes step;
  StepBreakdown breakdown;  ///< Mean over the steps.
  std::optional<std::uint64_t> peak_bytes{};
  std::optional<NetworkFacts> network{};  ///< Of the whole run; empty where ranks share memory only.
  std::vector<Finding> findings{};        ///< Found while running, by whoever saw it.
};

/// One line of JSON, with which a rank's summary travels to rank 0.
std::string to_json_text(const RankSummary& summary);
/// The inverse. Error Corrupt, naming the field, when `text` is not what to_json_text() wrote.
RankSummary rank_summary_from_json_text(std::string_view text);

/// The mean over ranks, each weighing the same. `ranks` must not be empty.
StepBreakdown mean_breakdown(const std::vector<RankSummary>& ranks);
StepTimes mean_step_times(const std::vector<RankSummary>& ranks);

/// The rank that keeps the others waiting, if one does all the time.
struct SlowRank {
  const RankSummary* summary;
  double ratio;  ///< Its busy time / the median of the others' (the mean of the middle two for an even number).
};
/// The rank with the largest busy time, i.e. all but exposed communication. Empty with fewer than two ranks or when
/// nothing was measured. Points into `ranks`.
std::optional<SlowRank> slowest_rank(const std::vector<RankSummary>& ranks);
/// From this ratio on a rank counts as slower than the others; less is noise.
inline constexpr double kSlowRankRatio = 1.1;

}  // namespace paceline
