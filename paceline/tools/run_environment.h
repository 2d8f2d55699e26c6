#pragma once

#include <string>
#include <vector>

#include "paceline/tools/run_options.h"

namespace paceline::tools {

/// What all workers of a job have in common beside the user's options.
struct JobFacts {
  std::string id;                  ///< Random; PACELINE_JOB.
  std::string store_address;       ///< PACELINE_STORE.
  std::string board_address = {};  ///< PACELINE_BOARD.
  int master_port = 0;             ///< MASTER_PORT.
  bool terminal = false;           ///< Whether live progress can be shown; PACELINE_PROGRESS.
};

/// The environment of one worker as KEY=VALUE: the launcher's own with the variables of its rank in place. docs and
/// `paceline run --help` name them.
std::vector<std::string> worker_environment(const RunOptions& options, const JobFacts& facts, int rank);

}  // namespace paceline::tools
