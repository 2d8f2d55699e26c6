#include "paceline/observe/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "paceline/base/error.h"

namespace paceline {
namespace {

void require_all_ranks(const std::vector<RankSummary>& ranks) {
  if (ranks.empty()) throw Error(ErrorCode::InvalidArgument, "a report needs the summary of at least one rank");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].rank == static_cast<int>(i)) continue;
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("a report of {} ranks needs one summary each of ranks 0 to {}, but got one of rank {} where "
                    "rank {} was due; set RecorderOptions::rank",
                    ranks.size(), ranks.size() - 1, ranks[i].rank, i));
  }
}

void complete(RunInfo& run, const std::vector<RankSummary>& ranks) {
  run.world = static_cast<int>(ranks.size());
  run.hosts.clear();
  run.steps = run.warmup_steps = 0;
  for (const RankSummary& rank : ranks) {
    if (std::find(run.hosts.begin(), run.hosts.end(), rank.host) == run.hosts.end()) run.hosts.push_back(rank.host);
    if (rank.steps > run.steps) {
      run.steps = rank.steps;
      run.warmup_steps = rank.warmup_steps;
    }
  }
}

void add_findings(Report& report) {
  for (const RankSummary& rank : report.ranks) {
    for (const Finding& finding : rank.findings) {
      const auto& known = report.findings;
      if (std::find(known.begin(), known.end(), finding) == known.end()) report.findings.push_back(finding);
    }
  }
  for (Finding& finding : findings(report)) report.findings.push_back(std::move(finding));
  sort_findings(report.findings);
}

}  // namespace

Report make_report(RunInfo run, ConfigInfo config, std::vector<RankSummary> ranks, const Outcome& outcome) {
  std::sort(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  require_all_ranks(ranks);

  Report report;
  report.run = std::move(run);
  complete(report.run, ranks);
  report.config = std::move(config);
  report.ranks = std::move(ranks);
  report.breakdown = mean_breakdown(report.ranks);
  report.step = mean_step_times(report.ranks);
  for (const RankSummary& rank : report.ranks) report.samples_per_s += rank.samples_per_s;
  if (outcome.one_worker_samples_per_s.value_or(0) > 0) {
    report.speedup_vs_one = report.samples_per_s / *outcome.one_worker_samples_per_s;
  }
  report.test_accuracy = outcome.test_accuracy;
  add_findings(report);
  return report;
}

std::string utc_text(std::chrono::system_clock::time_point time) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::chrono::system_clock::to_time_t(time)));
}

}  // namespace paceline
