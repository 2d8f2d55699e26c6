#pragma once

#include <string>
#include <vector>

#include "paceline/tools/bench/options.h"

namespace paceline::tools {

/// Whether this process is a worker that `paceline run`, or run_bench_workers(), has started.
bool is_bench_worker();

/// Starts as many workers of this program as `options` says, each with `arguments` (those of this process), by the
/// means of `paceline run`. Returns the job's exit code.
int run_bench_workers(const BenchOptions& options, const std::vector<std::string>& arguments);

}  // namespace paceline::tools
