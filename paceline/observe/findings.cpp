#include "paceline/observe/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "paceline/observe/report.h"
#include "paceline/observe/text.h"

namespace paceline {
namespace {

using Findings = std::vector<Finding>;

constexpr double kDataWait = 0.05;
constexpr double kSmallComm = 0.10;
constexpr double kLargeComm = 0.30;
constexpr double kOptimizer = 0.30;
constexpr double kOther = 0.03;
constexpr double kSmallEfficiency = 0.80;
constexpr double kUnexplained = 0.10;
constexpr double kTinyBytes = 64 * 1024;
constexpr double kManyOperations = 8;
constexpr double kSomeComm = 0.05;

void judge_data(const Report& report, Findings& out);
void judge_communication(const Report& report, Findings& out);
Finding waiting(const Report& report, Severity severity);
Finding transferring(const Report& report, Severity severity);
void judge_buckets(const Report& report, Findings& out);
void judge_optimizer(const Report& report, Findings& out);
void judge_other(const Report& report, Findings& out);
void judge_sharing(const Report& report, Findings& out);

struct HostLoad {
  std::string host;
  int ranks = 0;
  int threads = 0;
  std::set<int> cores;
  bool known = true;
};
std::vector<HostLoad> overloaded_hosts(const Report& report);

/// A finding that costs `cost_s` of each step of `step_s`; the caller fills in the words.
Finding costly(const char* id, Severity severity, double cost_s, double step_s) {
  constexpr double kMostShare = 0.999;  // Keeps the bound finite.
  Finding finding;
  finding.id = id;
  finding.severity = severity;
  finding.cost_s = cost_s;
  finding.max_gain = 1 / (1 - std::clamp(share_of(cost_s, step_s), 0.0, kMostShare));
  return finding;
}

}  // namespace

const char* to_string(Severity severity) {
  switch (severity) {
    case Severity::Info: return "info";
    case Severity::Warning: return "warning";
    case Severity::Error: return "error";
  }
  return "unknown";
}

std::vector<Finding> findings(const Report& report) {
  Findings out;
  if (report.breakdown.step_s() <= 0) return out;
  judge_data(report, out);
  if (report.run.world > 1) {
    judge_communication(report, out);
    judge_buckets(report, out);
  }
  judge_optimizer(report, out);
  judge_other(report, out);
  judge_sharing(report, out);
  sort_findings(out);
  return out;
}

void sort_findings(std::vector<Finding>& findings) {
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return a.severity != b.severity ? a.severity > b.severity : a.max_gain > b.max_gain;
  });
}

const Finding* most_useful(const std::vector<Finding>& findings) {
  const Finding* best = nullptr;
  for (const Finding& finding : findings) {
    if (finding.severity == Severity::Error) return &finding;
    if (finding.fix.empty()) continue;
    if (!best || finding.max_gain > best->max_gain) best = &finding;
  }
  return best;
}

namespace {

void judge_data(const Report& report, Findings& out) {
  const auto worst = std::max_element(report.ranks.begin(), report.ranks.end(), [](const auto& a, const auto& b) {
    return a.breakdown.data_wait_s < b.breakdown.data_wait_s;
  });
  if (worst == report.ranks.end()) return;
  const double step_s = worst->breakdown.step_s();
  const double wait_s = worst->breakdown.data_wait_s;
  if (share_of(wait_s, step_s) <= kDataWait) return;

  Finding finding = costly("data_wait", Severity::Warning, wait_s, step_s);
  finding.evidence =
      fmt::format("Rank {} waits {} of each step for data ({}); the mean over ranks is {}.", worst->rank,
                  duration_text(wait_s), share_text(wait_s / step_s), duration_text(report.breakdown.data_wait_s));
  finding.fix = "Give the loader more threads or let it prefetch further ahead, or store the data decoded";
  if (report.samples_per_s > 0 && step_s > wait_s) {
    finding.fix += fmt::format("; to keep up, all loaders together must deliver {} samples/s",
                               quantity_text(report.samples_per_s * step_s / (step_s - wait_s)));
  }
  finding.fix += ".";
  out.push_back(finding);
}

void judge_communication(const Report& report, Findings& out) {
  const StepBreakdown& mean = report.breakdown;
  const double share = share_of(mean.exposed_comm_s, mean.step_s());
  if (share < kSmallComm) {
    Finding finding = costly("comm_small", Severity::Info, mean.exposed_comm_s, mean.step_s());
    finding.evidence = fmt::format("Exposed communication takes {} of each step ({}): it is not the problem.",
                                   duration_text(mean.exposed_comm_s), share_text(share));
    out.push_back(finding);
    return;
  }
  const Severity severity = share > kLargeComm ? Severity::Warning : Severity::Info;
  const bool mostly_waiting = mean.wait_for_peers_s >= mean.exposed_comm_s / 2;
  out.push_back(mostly_waiting ? waiting(report, severity) : transferring(report, severity));
}

/// Waiting for peers: names the rank that is slow all the time, or says that none is.
Finding waiting(const Report& report, Severity severity) {
  const StepBreakdown& mean = report.breakdown;
  const std::string waits = fmt::format("Ranks wait {} of each step for each other ({} of exposed communication)",
                                        duration_text(mean.wait_for_peers_s),
                                        share_text(share_of(mean.wait_for_peers_s, mean.exposed_comm_s)));
  const std::optional<SlowRank> slow = slowest_rank(report.ranks);
  if (!slow || slow->ratio < kSlowRankRatio) {
    Finding finding = costly("imbalance", severity, mean.wait_for_peers_s, mean.step_s());
    finding.evidence = fmt::format(
        "{}, but no rank is slow all the time: the busiest works {:.2f} times as long as the "
        "others' median.",
        waits, slow ? slow->ratio : 1.0);
    finding.fix =
        "Not the network: even out the work between batches (group samples of similar length), give each rank "
        "its own cores.";
    return finding;
  }

  Finding finding = costly("straggler", severity, mean.wait_for_peers_s, mean.step_s());
  const RankSummary& rank = *slow->summary;
  const bool loads = rank.breakdown.data_wait_s > rank.breakdown.busy_s() / 2;
  finding.evidence = fmt::format("{}; rank {} on {} is busy {}, {:.2f} times as long as the others' median{}.", waits,
                                 rank.rank, rank.host, duration_text(rank.breakdown.busy_s()), slow->ratio,
                                 loads ? ", most of it waiting for data" : "");
  finding.fix =
      fmt::format("Not the network: look at rank {} on {} for {}.", rank.rank, rank.host,
                  loads ? "slow storage or too few loader threads"
                        : "another program on its cores, a throttled or slower processor, or more work in its "
                          "share of the data");
  return finding;
}

Finding transferring(const Report& report, Severity severity) {
  const StepBreakdown& mean = report.breakdown;
  const double in_all_s = mean.hidden_comm_s + mean.exposed_comm_s;
  Finding finding = costly("exposed_transfer", severity, mean.transfer_s, mean.step_s());
  finding.evidence = fmt::format(
      "Communication that compute does not hide takes {} of each step ({}); {} of it moves "
      "data, {} waits for peers. {} of all communication is hidden.",
      duration_text(mean.exposed_comm_s), share_text(share_of(mean.exposed_comm_s, mean.step_s())),
      duration_text(mean.transfer_s), duration_text(mean.wait_for_peers_s),
      share_text(share_of(mean.hidden_comm_s, in_all_s)));
  // With k times the samples a step: f' = f / (f + k (1 - f)).
  constexpr double kTimes = 4;
  const double f = share_of(mean.exposed_comm_s, mean.step_s());
  finding.fix = fmt::format(
      "A larger batch per rank: with 4 times the samples a step, the share comes down to about {}. If the bytes are "
      "few "
      "for that time, ranks were off their cores: run no more of them than there are.",
      share_text(f / (f + kTimes * (1 - f))));
  return finding;
}

void judge_buckets(const Report& report, Findings& out) {
  const StepBreakdown& mean = report.breakdown;
  const double bytes = share_of(mean.comm_bytes, mean.operations);
  const double comm_s = mean.hidden_comm_s + mean.exposed_comm_s;
  if (mean.operations < kManyOperations || bytes >= kTinyBytes || comm_s <= kSomeComm * mean.step_s()) return;
  Finding finding = costly("tiny_buckets", Severity::Warning, mean.transfer_s, mean.step_s());
  finding.evidence = fmt::format(
      "Each step runs {} collectives of {} on average; so small ones cost their latency, {} "
      "of exposed transfer a step.",
      quantity_text(mean.operations), bytes_text(bytes), duration_text(mean.transfer_s));
  finding.fix = "Use a larger bucket size, so that few buckets of 1 MiB or more remain.";
  out.push_back(finding);
}

void judge_optimizer(const Report& report, Findings& out) {
  const double cost_s = report.breakdown.optimizer_s;
  const double share = share_of(cost_s, report.breakdown.step_s());
  if (share <= kOptimizer) return;
  Finding finding = costly("optimizer", Severity::Warning, cost_s, report.breakdown.step_s());
  finding.evidence = fmt::format("The optimizer takes {} of each step ({}).", duration_text(cost_s), share_text(share));
  finding.fix = "Use a larger batch, so that it steps less often, or an optimizer with less state.";
  out.push_back(finding);
}

void judge_other(const Report& report, Findings& out) {
  const double cost_s = report.breakdown.other_s;
  const double share = share_of(cost_s, report.breakdown.step_s());
  if (share <= kOther) return;
  Finding finding = costly("other", Severity::Info, cost_s, report.breakdown.step_s());
  finding.evidence = fmt::format("{} of each step ({}) lies outside of loader, forward, backward and optimizer.",
                                 duration_text(cost_s), share_text(share));
  finding.fix = "Look at what the loop does between backward() and the next batch: logging, metrics, item() calls.";
  out.push_back(finding);
}

void judge_sharing(const Report& report, Findings& out) {
  const StepBreakdown& mean = report.breakdown;
  const double step_s = mean.step_s();
  const int world = report.run.world;
  const double efficiency = report.speedup_vs_one.value_or(world) / world;
  const double lost_s = step_s * std::max(0.0, 1 - efficiency);
  const std::string speedup = report.speedup_vs_one ? fmt::format("{} workers are {:.2f} times as fast as one ({})",
                                                                  world, *report.speedup_vs_one, share_text(efficiency))
                                                    : std::string();

  if (const std::vector<HostLoad> hosts = overloaded_hosts(report); !hosts.empty()) {
    const HostLoad& load = hosts.front();
    Finding finding = costly("oversubscribed", Severity::Warning, lost_s, step_s);
    finding.evidence = fmt::format("On {} {} rank{} with {} compute threads in all share {} core{}{}.", load.host,
                                   load.ranks, load.ranks == 1 ? "" : "s", load.threads, load.cores.size(),
                                   load.cores.size() == 1 ? "" : "s", speedup.empty() ? "" : "; " + speedup);
    const std::size_t fair = std::max<std::size_t>(1, load.cores.size() / static_cast<std::size_t>(load.ranks));
    finding.fix = load.cores.size() < static_cast<std::size_t>(load.ranks)
                      ? fmt::format("Start at most {} rank{} there, with OMP_NUM_THREADS=1.", load.cores.size(),
                                    load.cores.size() == 1 ? "" : "s")
                      : fmt::format("Set OMP_NUM_THREADS={}, i.e. cores / ranks on the host.", fair);
    out.push_back(finding);
    return;  // The cause that follows is only looked for when this one is ruled out.
  }

  const double unexplained_s = lost_s - mean.exposed_comm_s - mean.data_wait_s;
  if (world < 2 || efficiency >= kSmallEfficiency || mean.exposed_comm_s >= kSmallComm * step_s) return;
  if (unexplained_s <= kUnexplained * step_s) return;
  Finding finding = costly("shared_resource", Severity::Warning, unexplained_s, step_s);
  finding.evidence = fmt::format(
      "{}, yet exposed communication is only {} of the step: compute itself became slower by "
      "about {} a step.",
      speedup, share_text(share_of(mean.exposed_comm_s, step_s)), duration_text(unexplained_s));
  finding.fix =
      "The ranks of a host share something: memory bandwidth, cache, clock speed or, with too many threads, "
      "cores. Try fewer ranks with more threads each.";
  out.push_back(finding);
}

/// Hosts on which more compute threads run than there are cores for them.
std::vector<HostLoad> overloaded_hosts(const Report& report) {
  std::map<std::string, HostLoad> loads;
  for (const RankSummary& rank : report.ranks) {
    HostLoad& load = loads[rank.host];
    load.host = rank.host;
    ++load.ranks;
    load.threads += rank.threads;
    load.cores.insert(rank.cores.begin(), rank.cores.end());
    load.known = load.known && rank.threads > 0 && !rank.cores.empty();
  }
  std::vector<HostLoad> overloaded;
  for (const auto& [host, load] : loads) {
    if (load.known && load.threads > static_cast<int>(load.cores.size())) overloaded.push_back(load);
  }
  return overloaded;
}

}  // namespace

}  // namespace paceline
