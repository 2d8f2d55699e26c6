#include "paceline/tools/bench/start.h"

#include <cstdlib>

#include "paceline/launch/launcher.h"
#include "paceline/launch/options.h"
#include "paceline/tools/bench/names.h"

namespace paceline::tools {

bool is_bench_worker() { return std::getenv("WORLD_SIZE") != nullptr && std::getenv("PACELINE_STORE") != nullptr; }

int run_bench_workers(const BenchOptions& options, const std::vector<std::string>& arguments) {
  launch::RunOptions run;
  run.workers = options.workers;
  run.program = {"paceline"};
  run.program.insert(run.program.end(), arguments.begin(), arguments.end());
  run.executable = "/proc/self/exe";
  run.tag = false;
  run.transport = to_string(options.transport);
  return launch::run_launcher(run);
}

}  // namespace paceline::tools
