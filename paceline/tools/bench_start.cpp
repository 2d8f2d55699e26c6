#include "paceline/tools/bench_start.h"

#include <cstdlib>

#include "paceline/tools/bench_names.h"
#include "paceline/tools/run_front.h"
#include "paceline/tools/run_options.h"

namespace paceline::tools {

bool is_bench_worker() { return std::getenv("WORLD_SIZE") != nullptr && std::getenv("PACELINE_STORE") != nullptr; }

int run_bench_workers(const BenchOptions& options, const std::vector<std::string>& arguments) {
  RunOptions run;
  run.workers = options.workers;
  run.program = {"paceline"};
  run.program.insert(run.program.end(), arguments.begin(), arguments.end());
  run.executable = "/proc/self/exe";
  run.tag = false;
  run.transport = to_string(options.transport);
  return run_front(run);
}

}  // namespace paceline::tools
