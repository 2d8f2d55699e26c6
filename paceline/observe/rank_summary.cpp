#include "paceline/observe/rank_summary.h"

#include <algorithm>

#include "paceline/observe/json_field.h"

namespace paceline {

std::string to_json_text(const RankSummary& summary) {
  const StepBreakdown& mean = summary.breakdown;
  return dump_json({{"rank", summary.rank},
                    {"host", summary.host},
                    {"pid", summary.pid},
                    {"threads", summary.threads},
                    {"cores", summary.cores},
                    {"steps", summary.steps},
                    {"warmup_steps", summary.warmup_steps},
                    {"samples_per_s", summary.samples_per_s},
                    {"step_s", to_json(summary.step)},
                    {"breakdown_s", parts_to_json(mean)},
                    {"hidden_comm_s", mean.hidden_comm_s},
                    {"wait_for_peers_s", mean.wait_for_peers_s},
                    {"transfer_s", mean.transfer_s},
                    {"reducing_s", mean.reducing_s},
                    {"comm_bytes", mean.comm_bytes},
                    {"operations", mean.operations},
                    {"peak_bytes", json_or_null(summary.peak_bytes)},
                    {"network", to_json(summary.network)},
                    {"findings", to_json(summary.findings)}});
}

RankSummary rank_summary_from_json_text(std::string_view text) {
  const std::string source = "a rank's summary";
  const nlohmann::json document = parse_json(text, source);
  const JsonField field(document, source);
  RankSummary summary;
  summary.rank = field["rank"].small_count();
  summary.host = field["host"].text();
  summary.pid = field["pid"].integer();
  summary.threads = field["threads"].small_count();
  for (const JsonField& core : field["cores"].items()) summary.cores.push_back(core.small_count());
  summary.steps = field["steps"].count();
  summary.warmup_steps = field["warmup_steps"].count();
  summary.samples_per_s = field["samples_per_s"].number();
  summary.step = step_times_from_json(field["step_s"]);
  parts_from_json(field["breakdown_s"], summary.breakdown);
  summary.breakdown.hidden_comm_s = field["hidden_comm_s"].number();
  summary.breakdown.wait_for_peers_s = field["wait_for_peers_s"].number();
  summary.breakdown.transfer_s = field["transfer_s"].number();
  summary.breakdown.reducing_s = field["reducing_s"].number();
  summary.breakdown.comm_bytes = field["comm_bytes"].number();
  summary.breakdown.operations = field["operations"].number();
  summary.peak_bytes = field["peak_bytes"].count_or_null();
  summary.network = network_from_json(field["network"]);
  summary.findings = findings_from_json(field["findings"]);
  return summary;
}

StepBreakdown mean_breakdown(const std::vector<RankSummary>& ranks) {
  StepBreakdown mean;
  for (const RankSummary& rank : ranks) mean += rank.breakdown;
  mean /= static_cast<double>(ranks.size());
  return mean;
}

StepTimes mean_step_times(const std::vector<RankSummary>& ranks) {
  StepTimes mean;
  const double share = 1.0 / static_cast<double>(ranks.size());
  for (const RankSummary& rank : ranks) {
    mean.mean_s += rank.step.mean_s * share;
    mean.p50_s += rank.step.p50_s * share;
    mean.p90_s += rank.step.p90_s * share;
    mean.p99_s += rank.step.p99_s * share;
  }
  return mean;
}

std::optional<SlowRank> slowest_rank(const std::vector<RankSummary>& ranks) {
  if (ranks.size() < 2) return std::nullopt;
  std::vector<const RankSummary*> order;
  order.reserve(ranks.size());
  for (const RankSummary& rank : ranks) order.push_back(&rank);
  std::stable_sort(order.begin(), order.end(), [](const RankSummary* a, const RankSummary* b) {
    return a->breakdown.busy_s() < b->breakdown.busy_s();
  });
  const std::size_t others = order.size() - 1;
  const double median = (order[(others - 1) / 2]->breakdown.busy_s() + order[others / 2]->breakdown.busy_s()) / 2;
  if (median <= 0) return std::nullopt;
  return SlowRank{order.back(), order.back()->breakdown.busy_s() / median};
}

}  // namespace paceline
