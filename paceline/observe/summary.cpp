#include "paceline/observe/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "paceline/observe/text.h"

namespace paceline {
namespace {

/// Collects lines of text with the little typography that a terminal has.
class Page {
 public:
  explicit Page(const SummaryOptions& options) : options_(options), width_(std::max(60, options.width)) {}

  void line(std::string_view text = {}) {
    text_ += text.substr(0, text.find_last_not_of(' ') + 1);
    text_ += '\n';
  }
  /// "  label   text", where text goes on in its own column when it is longer than a line.
  void entry(std::string_view label, std::string_view text);
  /// `text` in lines that fit after an indent.
  std::vector<std::string> wrapped(std::string_view text, std::size_t indent) const;
  std::string bold(std::string_view text) const { return styled("1", text); }
  std::string dim(std::string_view text) const { return styled("2", text); }
  std::string styled(const char* code, std::string_view text) const;
  /// A bar of `share` of `columns`, exact to an eighth of a column in UTF-8.
  std::string bar(double share, int columns) const;
  int width() const { return width_; }
  std::string take() { return std::move(text_); }

 private:
  const SummaryOptions& options_;
  int width_;
  std::string text_;
};

void write_outcome(const Report& report, Page& page);
void write_parts(const Report& report, Page& page);
void write_details(const Report& report, Page& page);
void write_advice(const Report& report, Page& page);
void write_report_path(const Report& report, const std::string& path, Page& page);
std::string plural(std::uint64_t count, const char* noun);

}  // namespace

std::string terminal_summary(const Report& report, const SummaryOptions& options) {
  Page page(options);
  write_outcome(report, page);
  if (report.breakdown.step_s() > 0) {
    write_parts(report, page);
    write_details(report, page);
    write_advice(report, page);
  } else {
    page.line("  No training step was recorded: either none ran, or the optimizer is not watched.");
  }
  if (!options.report_path.empty()) write_report_path(report, options.report_path, page);
  return page.take();
}

namespace {

void write_outcome(const Report& report, Page& page) {
  std::string run = plural(static_cast<std::uint64_t>(report.run.world), "worker");
  run += " on " + (report.run.hosts.size() == 1 ? report.run.hosts.front() : plural(report.run.hosts.size(), "host"));
  run += ", " + plural(report.run.steps, "step");
  if (report.run.warmup_steps > 0) run += fmt::format(" ({} of warm-up left out)", report.run.warmup_steps);
  if (!report.config.model.empty()) run = report.config.model + ": " + run;

  std::string facts;
  const auto add = [&facts](const std::string& fact) { facts += (facts.empty() ? "" : "   ") + fact; };
  if (report.test_accuracy) add(fmt::format("{:.2f} % test accuracy", *report.test_accuracy * 100));
  if (report.samples_per_s > 0) add(quantity_text(report.samples_per_s) + " samples/s");
  if (report.speedup_vs_one && report.run.world > 1) {
    add(fmt::format("{:.2f}x one worker ({} efficient)", *report.speedup_vs_one,
                    share_text(*report.speedup_vs_one / report.run.world)));
  }
  for (const std::string& part : page.wrapped(run, 2)) page.line("  " + page.dim(part));
  for (const std::string& part : page.wrapped(facts, 2)) page.line("  " + page.bold(part));
  page.line();
}

void write_parts(const Report& report, Page& page) {
  const StepBreakdown& mean = report.breakdown;
  const double step_s = mean.step_s();
  const struct {
    const char* name;
    double time_s;
    const char* colour;
  } parts[] = {{"waiting for data", mean.data_wait_s, "33"}, {"forward", mean.forward_s, "32"},
               {"backward", mean.backward_s, "32"},          {"exposed communication", mean.exposed_comm_s, "31"},
               {"optimizer", mean.optimizer_s, "32"},        {"other", mean.other_s, "33"}};
  double longest_s = 0;
  for (const auto& part : parts) longest_s = std::max(longest_s, part.time_s);

  // One unit for the column, chosen by the step, so that the figures can be compared at a glance.
  const char* const unit = step_s >= 10 ? "s" : step_s >= 1e-3 ? "ms" : "us";
  const double per_s = step_s >= 10 ? 1 : step_s >= 1e-3 ? 1e3 : 1e6;
  const int decimals = step_s * per_s >= 1000 ? 0 : step_s * per_s >= 100 ? 1 : 2;
  const auto row = [&](const char* name, double time_s) {
    return fmt::format("  {:<21} {:>8.{}f} {:<2} {:>5.1f} %", name, time_s * per_s, decimals, unit,
                       100 * time_s / step_s);
  };
  const int columns = page.width() - 45;
  for (const auto& part : parts) {
    page.line(row(part.name, part.time_s) + "  " +
              page.styled(part.colour, page.bar(part.time_s / longest_s, columns)));
  }
  page.line(page.bold(row("step, mean", step_s)));
  page.line();
}

void write_details(const Report& report, Page& page) {
  const StepBreakdown& mean = report.breakdown;
  const double comm_s = mean.hidden_comm_s + mean.exposed_comm_s;
  if (report.run.world > 1 && comm_s > 0) {
    page.entry("Hidden",
               fmt::format("{} of {} communication ran behind compute ({})", duration_text(mean.hidden_comm_s),
                           duration_text(comm_s), share_text(mean.hidden_comm_s / comm_s)));
    page.entry("Exposed", fmt::format("{} transfer, {} waiting for other ranks", duration_text(mean.transfer_s),
                                      duration_text(mean.wait_for_peers_s)));
    if (mean.reducing_s > 0) {
      page.entry("Reducing", fmt::format("{} of a rank's step, exposed or not, for {}", duration_text(mean.reducing_s),
                                         bytes_text(mean.comm_bytes)));
    }
  }
  std::optional<NetworkFacts> network;
  for (const RankSummary& rank : report.ranks) {
    if (rank.network) (network ? *network : network.emplace()) += *rank.network;
  }
  if (network) {
    page.entry("Network", fmt::format("{} sent by all ranks together, {} segments of it again; worst round trip {}",
                                      bytes_text(static_cast<double>(network->bytes_sent)), network->retransmits,
                                      duration_text(network->worst_round_trip_s)));
  }
  page.entry("Step time", fmt::format("p50 {}   p90 {}   p99 {}", duration_text(report.step.p50_s),
                                      duration_text(report.step.p90_s), duration_text(report.step.p99_s)));

  const RankSummary* largest = nullptr;
  for (const RankSummary& rank : report.ranks) {
    if (rank.peak_bytes && (!largest || *rank.peak_bytes > *largest->peak_bytes)) largest = &rank;
  }
  if (largest) {
    page.entry("Memory", fmt::format("{} at most{}", bytes_text(static_cast<double>(*largest->peak_bytes)),
                                     report.run.world > 1 ? fmt::format(", on rank {}", largest->rank) : ""));
  }
  if (const auto slow = slowest_rank(report.ranks); slow && slow->ratio >= kSlowRankRatio) {
    page.entry("Slowest",
               fmt::format("rank {} on {}: busy {} a step, {:.2f} times the others' median", slow->summary->rank,
                           slow->summary->host, duration_text(slow->summary->breakdown.busy_s()), slow->ratio));
  }
}

void write_advice(const Report& report, Page& page) {
  page.line();
  if (const Finding* finding = most_useful(report.findings)) {
    page.entry(finding->severity == Severity::Error ? "PROBLEM" : "Finding", finding->evidence);
    std::string advice = finding->fix;
    if (finding->max_gain >= 1.005) advice += fmt::format(" At most {:.2f}x faster.", finding->max_gain);
    if (!advice.empty()) page.entry("Advice", advice);
    return;
  }
  const StepBreakdown& mean = report.breakdown;
  const double compute_s = mean.forward_s + mean.backward_s + mean.optimizer_s;
  std::string clear =
      fmt::format("Nothing stands out: {} of the step is compute, ", share_text(compute_s / mean.step_s()));
  if (report.run.world > 1) {
    clear += share_text(mean.exposed_comm_s / mean.step_s()) + " exposed communication, ";
  }
  page.entry("Finding", clear + share_text(mean.data_wait_s / mean.step_s()) + " waiting for data.");
}

void write_report_path(const Report& report, const std::string& path, Page& page) {
  const auto advised = std::count_if(report.findings.begin(), report.findings.end(),
                                     [](const Finding& finding) { return !finding.fix.empty(); });
  page.entry("Report", path + (advised > 1 ? fmt::format(" has {} findings", advised) : ""));
}

std::string plural(std::uint64_t count, const char* noun) {
  return fmt::format("{} {}{}", quantity_text(static_cast<double>(count)), noun, count == 1 ? "" : "s");
}

void Page::entry(std::string_view label, std::string_view text) {
  constexpr std::size_t kColumn = 13;
  std::string head = "  " + bold(label) + std::string(kColumn - 2 - label.size(), ' ');
  for (const std::string& part : wrapped(text, kColumn)) {
    line(head + part);
    head.assign(kColumn, ' ');
  }
}

std::vector<std::string> Page::wrapped(std::string_view text, std::size_t indent) const {
  const std::size_t room = static_cast<std::size_t>(width_) - indent;
  std::vector<std::string> lines;
  while (text.size() > room) {
    std::size_t space = text.rfind(' ', room);
    if (space == std::string_view::npos) space = text.find(' ');  // A long path stays in one piece.
    if (space == std::string_view::npos) break;
    lines.emplace_back(text.substr(0, space));
    text.remove_prefix(space + 1);
  }
  lines.emplace_back(text);
  return lines;
}

std::string Page::styled(const char* code, std::string_view text) const {
  if (options_.colour == Colour::None || text.empty()) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

std::string Page::bar(double share, int columns) const {
  const double length = std::clamp(share, 0.0, 1.0) * columns;
  if (options_.charset == Charset::Ascii) return std::string(static_cast<std::size_t>(std::lround(length)), '#');
  constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = std::lround(length * 8);
  std::string bar;
  for (long i = 0; i < eighths / 8; ++i) bar += "█";
  return bar + kEighths[eighths % 8];
}

}  // namespace

}  // namespace paceline
