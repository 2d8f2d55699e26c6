#include "paceline/observe/recorder.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "paceline/observe/memory.h"

namespace paceline {
namespace {

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, HOST_NAME_MAX) == 0 ? name : "unknown";
}

/// Empty when the system does not tell, as with more than CPU_SETSIZE (1024) cores.
std::vector<int> usable_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

}  // namespace

Recorder::Recorder(Timeline& timeline, RecorderOptions options) : timeline_(timeline), sink_(0), options_(options) {
  options_.live_steps = std::max<std::size_t>(1, options_.live_steps);
  live_.reserve(options_.live_steps);
  sink_ = timeline_.add_sink([this](const StepEvents& events) { add(events); });
}

Recorder::~Recorder() { timeline_.remove_sink(sink_); }

void Recorder::add_finding(Finding finding) {
  const bool known =
      std::any_of(findings_.begin(), findings_.end(), [&](const Finding& other) { return other.id == finding.id; });
  if (!known) findings_.push_back(std::move(finding));
}

RankSummary Recorder::summary() const {
  const bool past_warmup = measured_.steps > 0;
  const Totals& totals = past_warmup ? measured_ : warmup_;
  RankSummary summary;
  summary.rank = options_.rank;
  summary.host = host_name();
  summary.pid = ::getpid();
  summary.threads = options_.threads;
  summary.cores = usable_cores();
  summary.steps = warmup_.steps + measured_.steps;
  summary.warmup_steps = past_warmup ? warmup_.steps : 0;
  summary.peak_bytes = peak_resident_bytes();
  summary.findings = findings_;
  if (totals.steps == 0) return summary;

  const double time_s = totals.sum.step_s();
  summary.samples_per_s = time_s > 0 ? totals.samples / time_s : 0;
  summary.breakdown = totals.sum;
  summary.breakdown /= static_cast<double>(totals.steps);
  summary.step = {summary.breakdown.step_s(), totals.times.percentile(50), totals.times.percentile(90),
                  totals.times.percentile(99)};
  return summary;
}

LiveFigures Recorder::live() const {
  LiveFigures figures;
  figures.steps = warmup_.steps + measured_.steps;
  LiveStep sum{};
  for (const LiveStep& step : live_) {
    sum.step_s += step.step_s;
    sum.exposed_s += step.exposed_s;
    sum.data_wait_s += step.data_wait_s;
    sum.samples += step.samples;
  }
  if (sum.step_s <= 0) return figures;
  figures.samples_per_s = sum.samples / sum.step_s;
  figures.step_s = sum.step_s / static_cast<double>(live_.size());
  figures.exposed_share = sum.exposed_s / sum.step_s;
  figures.data_wait_share = sum.data_wait_s / sum.step_s;
  return figures;
}

void Recorder::add(const StepEvents& events) {
  const StepBreakdown step = breakdown(events);
  const LiveStep recent{step.step_s(), step.exposed_comm_s, step.data_wait_s, events.samples};
  if (live_.size() < options_.live_steps) {
    live_.push_back(recent);
  } else {
    live_[(warmup_.steps + measured_.steps) % live_.size()] = recent;
  }
  (warmup_.steps < options_.warmup_steps ? warmup_ : measured_).add(step, events.samples);
}

void Recorder::Totals::add(const StepBreakdown& step, double step_samples) {
  ++steps;
  sum += step;
  samples += step_samples;
  times.add(step.step_s());
}

}  // namespace paceline
