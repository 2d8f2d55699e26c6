#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "paceline/tools/run_watch.h"

namespace paceline::tools {

/// What `paceline run` was asked for.
struct RunOptions {
  int workers = 0;
  std::vector<std::string> program;  ///< Its arguments with its name in front, as the user gave them.
  std::string executable;            ///< The file that the name stands for.
  bool tag = true;                   ///< Put "[rank R] " in front of each line.
  /// After the first failure: how long the others get to end by themselves.
  std::chrono::milliseconds grace{2000};
  WatchOptions watch;                     ///< When a worker is silent, and when the job is stuck.
  std::optional<int> timeout_s;           ///< PACELINE_TIMEOUT.
  std::optional<std::string> transport;   ///< PACELINE_TRANSPORT.
  std::optional<int> threads_per_worker;  ///< Overrides the environment when given.
  bool keep_freed_memory = true;          ///< Tune glibc's malloc, unless the environment does.
  std::optional<std::string> run_dir;     ///< PACELINE_RUN_DIR, absolute.
  std::vector<std::string> environment;   ///< KEY=VALUE
};

}  // namespace paceline::tools
