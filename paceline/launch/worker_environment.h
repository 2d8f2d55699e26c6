#pragma once

#include <string>
#include <vector>

#include "paceline/launch/nodes/nodes.h"
#include "paceline/launch/options.h"

namespace paceline::launch {

/// What all workers of a job have in common beside the user's options.
struct JobFacts {
  std::string id;                       ///< Random; PACELINE_JOB.
  std::string store_address;            ///< PACELINE_STORE.
  std::string job_status_address = {};  ///< PACELINE_JOB_STATUS.
  int node = 0, nodes = 1;              ///< GROUP_RANK, GROUP_WORLD_SIZE.
  int first_rank = 0;                   ///< Of this host's workers.
  int world_size = 0;                   ///< WORLD_SIZE.
  std::string master_address = "127.0.0.1";
  int master_port = 0;                        ///< MASTER_PORT.
  std::string bind = {};                      ///< PACELINE_BIND, if anything.
  std::string secret_file = {}, secret = {};  ///< PACELINE_SECRET_FILE or PACELINE_SECRET, if anything.
  bool terminal = false;                      ///< Whether live progress can be shown; PACELINE_PROGRESS.
};

/// Those of a job over several hosts, on the host that has this place. `secret_file` is this host's, if it has one.
JobFacts facts_of(const Placement& place, const std::string& secret_file);

/// The environment of one worker as KEY=VALUE: the launcher's own with the variables of its rank in place. docs and
/// `paceline run --help` name them. `local_rank` is the rank among this host's workers.
std::vector<std::string> worker_environment(const RunOptions& options, const JobFacts& facts, int local_rank);

}  // namespace paceline::launch
