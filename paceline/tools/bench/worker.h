#pragma once

#include "paceline/base/exit_codes.h"
#include "paceline/tools/bench/options.h"

namespace paceline::tools {

/// Measures as one rank of the job that the environment tells of; rank 0 prints the table and writes the files. Returns
/// the exit code, of which rank 0's says something: 1 if elements were wrong, kExitUsage for an algorithm that cannot
/// do what was asked, kExitOutput if a file cannot be written. Throws what collectives throw, having told the others.
int run_bench_worker(const BenchOptions& options);

}  // namespace paceline::tools
