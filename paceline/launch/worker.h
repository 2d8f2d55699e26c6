#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "paceline/base/unique_fd.h"

namespace paceline::launch {

/// What to start, and in which state of a process.
struct WorkerProgram {
  std::string executable;
  std::vector<std::string> arguments;    ///< With the program's name in front.
  std::vector<std::string> environment;  ///< KEY=VALUE
  int input = -1;                        ///< Its standard input; /dev/null where there is none.
  sigset_t signal_mask{};
  rlimit open_files{};
  int inherited = -1;  ///< A descriptor that it gets under the same number, if not -1.
};

struct StartedWorker {
  pid_t pid = 0;
  UniqueFd out, err;    ///< Non-blocking; what it writes to stdout and stderr.
  int start_error = 0;  ///< errno of exec. When not 0 the process has ended, or is about to.
};

/// Starts the program in a process group of its own. It dies with the process that calls this.
/// Throws System when there is no process or pipe to be had.
StartedWorker start_worker(const WorkerProgram& program);

}  // namespace paceline::launch
