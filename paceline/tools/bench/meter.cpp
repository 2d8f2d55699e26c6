#include "paceline/tools/bench/meter.h"

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "paceline/base/clock.h"

namespace paceline::tools {
namespace {

// A look at the clock costs some 25 ns, and leaving a barrier is not simultaneous: calls shorter than this are timed
// in batches that last longer.
constexpr double kShort_s = 5e-6, kBatch_s = 50e-6;
constexpr std::size_t kLongestBatch = 10'000;
constexpr std::size_t kLeastSamples = 5, kMostSamples = 20'000;
// The operation and its roofline take turns, so that both see the same weather.
constexpr std::size_t kRounds = 5;

bool has_roofline(const Comm& comm, const BenchOptions& options);
std::int64_t context_switches();
std::int64_t cpu_time_ns();
std::size_t part_of(std::size_t samples, std::size_t round);

}  // namespace

BenchMeter::BenchMeter(const Comm& comm, const BenchOptions& options, const BenchOperands& operands,
                       const BenchOperands& mapped)
    : comm_(comm), options_(options), operands_(operands), mapped_(mapped) {
  if (has_roofline(comm, options)) roofline_.emplace(comm, options, mapped);
  barrier_s_ = seconds_per_call([&] { comm_.barrier(); });
}

RowSamples BenchMeter::measure(const BenchRow& row) const {
  const Operation operation = operands_.operation(row);
  operands_.write_input(row);
  comm_.barrier();
  for (int i = 0; i < options_.warmup; ++i) comm_.run(operation);

  double rewrite_s = 0;
  if (options_.dirty) rewrite_s = seconds_per_call([&] { operands_.write_input(row); });
  const Schedule calls = schedule([&] { comm_.run(operation); }, rewrite_s);
  RowSamples samples;
  samples.operation.batch = calls.batch;
  Schedule kernels{.samples = 0};
  std::optional<Roofline::Share> share;
  if (roofline_) {
    share = roofline_->share(row);
    mapped_.write_input(row);
    kernels = schedule([&] { share->run(); }, rewrite_s);
    samples.roofline.emplace().batch = kernels.batch;
  }

  operands_.write_input(row);
  for (std::size_t round = 0; round < kRounds; ++round) {
    time_calls(row, operation, part_of(calls.samples, round), samples.operation);
    if (share) time_roofline(row, *share, part_of(kernels.samples, round), *samples.roofline);
  }
  samples.operation.entered_ns = of_all_ranks(samples.operation.entered_ns);
  samples.operation.duration_ns = of_all_ranks(samples.operation.duration_ns);
  comm_.all_reduce(std::span(&samples.operation.context_switches, 1));
  if (share) {
    samples.roofline->duration_ns = of_all_ranks(samples.roofline->duration_ns);
    samples.roofline->cpu_ns = of_all_ranks(samples.roofline->cpu_ns);
  }
  if (options_.check) samples.wrong = count_wrong(row, operation);
  return samples;
}

/// `extra_s` is what a sample costs outside of what is timed, beside the barrier.
BenchMeter::Schedule BenchMeter::schedule(const std::function<void()>& call, double extra_s) const {
  const double call_s = seconds_per_call(call);
  Schedule chosen;
  // Only the first call of a batch would meet rewritten inputs.
  if (call_s < kShort_s && !options_.dirty) {
    chosen.batch = std::min(static_cast<std::size_t>(std::ceil(kBatch_s / std::max(call_s, 1e-9))), kLongestBatch);
  }
  const double sample_s = call_s * static_cast<double>(chosen.batch) + barrier_s_ + extra_s;
  chosen.samples = options_.iterations
                       ? static_cast<std::size_t>(*options_.iterations)
                       : std::clamp(static_cast<std::size_t>(options_.seconds / sample_s), kLeastSamples, kMostSamples);
  return chosen;
}

double BenchMeter::seconds_per_call(const std::function<void()>& call) const {
  for (std::size_t calls = 1;; calls *= 4) {
    comm_.barrier();
    const Nanoseconds begin = now();
    for (std::size_t i = 0; i < calls; ++i) call();
    const double elapsed = most_of_ranks(seconds(now() - begin));
    if (elapsed > 200e-6 || calls >= kLongestBatch) return elapsed / static_cast<double>(calls);
  }
}

double BenchMeter::most_of_ranks(double value) const {
  comm_.all_reduce(std::span(&value, 1), ReduceOp::Max);
  return value;
}

void BenchMeter::time_calls(const BenchRow& row, const Operation& operation, std::size_t samples,
                            OperationSamples& own) const {
  for (std::size_t i = 0; i < samples; ++i) {
    if (options_.dirty) operands_.write_input(row);
    comm_.barrier();
    const std::int64_t switches = context_switches();
    const Nanoseconds begin = now();
    for (std::size_t call = 0; call < own.batch; ++call) comm_.run(operation);
    const Nanoseconds end = now();
    own.context_switches += context_switches() - switches;
    own.entered_ns.push_back(begin.count());
    own.duration_ns.push_back((end - begin).count());
  }
  comm_.barrier();
}

void BenchMeter::time_roofline(const BenchRow& row, const Roofline::Share& share, std::size_t samples,
                               RooflineSamples& own) const {
  for (std::size_t i = 0; i < samples; ++i) {
    if (options_.dirty) mapped_.write_input(row);
    comm_.barrier();
    const std::int64_t cpu = cpu_time_ns();
    const Nanoseconds begin = now();
    for (std::size_t call = 0; call < own.batch; ++call) share.run();
    const Nanoseconds end = now();
    own.cpu_ns.push_back(cpu_time_ns() - cpu);
    own.duration_ns.push_back((end - begin).count());
  }
  comm_.barrier();
}

std::uint64_t BenchMeter::count_wrong(const BenchRow& row, const Operation& operation) const {
  operands_.spoil_output(row);
  operands_.write_input(row);
  comm_.barrier();
  comm_.run(operation);
  auto wrong = static_cast<std::int64_t>(operands_.count_wrong(row));
  comm_.all_reduce(std::span(&wrong, 1));
  return static_cast<std::uint64_t>(wrong);
}

std::vector<std::int64_t> BenchMeter::of_all_ranks(const std::vector<std::int64_t>& own) const {
  std::vector<std::int64_t> all(own.size() * static_cast<std::size_t>(comm_.world_size()));
  comm_.all_gather(std::span<const std::int64_t>(own), std::span<std::int64_t>(all));
  return all;
}

namespace {

/// Over a network the limit is not the kernel's; alone there is nothing to do.
bool has_roofline(const Comm& comm, const BenchOptions& options) {
  return comm.world_size() > 1 && comm.engine_name() == std::string_view("shm") &&
         options.collective->kind != Collective::Barrier;
}

/// Of this process, voluntary and not.
std::int64_t context_switches() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nvcsw + usage.ru_nivcsw;
}

std::int64_t cpu_time_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

/// How many of `samples` belong to this round; they add up.
std::size_t part_of(std::size_t samples, std::size_t round) {
  return samples * (round + 1) / kRounds - samples * round / kRounds;
}

}  // namespace
}  // namespace paceline::tools
