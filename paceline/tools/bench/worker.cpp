#include "paceline/tools/bench/worker.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "paceline/base/cpu.h"
#include "paceline/base/error.h"
#include "paceline/base/exit_codes.h"
#include "paceline/base/kernels.h"
#include "paceline/tools/bench/meter.h"
#include "paceline/tools/bench/names.h"
#include "paceline/tools/bench/plan.h"
#include "paceline/tools/bench/report.h"
#include "paceline/tools/commands.h"

namespace paceline::tools {
namespace {

Comm join(const BenchOptions& options);
BenchFacts facts_of(const Comm& comm, const BenchOptions& options);
std::string algorithm_refusal(const Comm& comm, const BenchOperands& operands, const std::vector<BenchRow>& rows);
BenchReport measure_all(const Comm& comm, const BenchOptions& options, const BenchOperands& operands,
                        const std::vector<BenchRow>& rows);
void print(const std::string& text);
int write_results(const BenchReport& report);

}  // namespace

int run_bench_worker(const BenchOptions& options) {
  const Comm comm = join(options);
  try {
    const std::vector<BenchRow> rows = plan_rows(options, comm.world_size());
    const BenchOperands operands(comm, options, rows, options.buffers);
    if (const std::string refusal = algorithm_refusal(comm, operands, rows); !refusal.empty()) {
      // The same on all ranks. One says it, and none leaves before all have seen it.
      comm.barrier();
      if (comm.rank() == 0) fmt::print(stderr, "paceline bench: {}\n", refusal);
      return comm.rank() == 0 ? kExitUsage : 0;
    }
    const BenchReport report = measure_all(comm, options, operands, rows);
    return comm.rank() == 0 ? write_results(report) : 0;
  } catch (const std::exception& error) {
    comm.abort(error.what());
    throw;
  }
}

namespace {

Comm join(const BenchOptions& options) {
  ::setenv("PACELINE_TRANSPORT", to_string(options.transport), 1);
  return Comm::from_env();
}

/// Before minutes of measuring: why the algorithm that was asked for cannot carry out a row, or "".
std::string algorithm_refusal(const Comm& comm, const BenchOperands& operands, const std::vector<BenchRow>& rows) {
  for (const BenchRow& row : rows) {
    try {
      comm.algorithm(operands.operation(row));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::InvalidArgument) throw;
      return fmt::format("{}, and was asked for at {} bytes", error.message(), row.bytes);
    }
  }
  return "";
}

BenchReport measure_all(const Comm& comm, const BenchOptions& options, const BenchOperands& operands,
                        const std::vector<BenchRow>& rows) {
  BenchReport report{.options = options, .facts = facts_of(comm, options), .results = {}};
  const bool prints = comm.rank() == 0 && options.json != "-";
  if (prints) print(table_head(options, report.facts));
  std::optional<BenchOperands> mapped;  // where the others could not reach them
  if (options.buffers == BenchBuffers::Private) mapped.emplace(comm, options, rows, BenchBuffers::Registered);
  const BenchMeter meter(comm, options, operands, mapped ? *mapped : operands);
  for (const BenchRow& row : rows) {
    const RowSamples samples = meter.measure(row);
    BenchResult result = summarize(options, row, samples, comm.world_size(), report.facts.cores);
    result.algorithm = paceline::to_string(comm.algorithm(operands.operation(row)));
    if (prints) print(table_row(options, result));
    report.results.push_back(std::move(result));
  }
  if (prints) print(table_foot(report));
  return report;
}

BenchFacts facts_of(const Comm& comm, const BenchOptions& options) {
  char host[256] = "unknown";
  ::gethostname(host, sizeof host - 1);
  return {.host = host,
          .ranks = comm.world_size(),
          .cores = usable_cpus(),
          .transport = options.transport == BenchTransport::Auto ? comm.engine_name() : to_string(options.transport),
          .engine = comm.engine_name(),
          .kernel = kernel_target(),
          .started = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))};
}

void print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) throw system_error("cannot print", errno);
}

bool write_file(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  const bool written = file != nullptr && std::fputs(text.c_str(), file) >= 0;
  const int reason = errno;
  if (file != nullptr && std::fclose(file) == 0 && written) return true;
  fmt::print(stderr, "paceline bench: cannot write {}: {}\n", path,
             std::generic_category().message(written ? errno : reason));
  return false;
}

int write_results(const BenchReport& report) {
  bool written = true;
  const BenchOptions& options = report.options;
  if (options.json == "-") {
    print(bench_json(report));
  } else if (options.json) {
    written = write_file(*options.json, bench_json(report));
  }
  if (options.plot) written = write_file(*options.plot, bench_plot(report)) && written;
  if (!written) return kExitOutput;
  std::uint64_t wrong = 0;
  for (const BenchResult& result : report.results) wrong += result.wrong.value_or(0);
  if (wrong > 0) fmt::print(stderr, "paceline bench: {} elements were wrong\n", wrong);
  return wrong > 0 ? 1 : 0;
}

}  // namespace
}  // namespace paceline::tools
