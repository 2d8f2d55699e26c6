#pragma once

#include "paceline/tools/bench_options.h"

namespace paceline::tools {

/// Measures as one rank of the job that the environment tells of; rank 0 prints the table and writes the files. Returns
/// the exit code: 1 on rank 0 if elements were wrong, kExitOutput if a file cannot be written.
/// Throws InvalidArgument before anything is measured, and what collectives throw, having told the others.
int run_bench_worker(const BenchOptions& options);

}  // namespace paceline::tools
