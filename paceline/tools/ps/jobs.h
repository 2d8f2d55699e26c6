#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "paceline/comm/status/status_view.h"

namespace paceline::tools {

/// What the status of one job shows.
struct JobView {
  std::string name = {};  ///< PACELINE_JOB
  pid_t launcher = 0, supervisor = 0;
  std::string host = {}, program = {};
  int world_size = 0;
  Nanoseconds at{};                  ///< When this was read.
  Nanoseconds age{};                 ///< Since its start.
  std::string failure = {};          ///< Why the job failed; empty if it did not.
  std::vector<RankView> ranks = {};  ///< Those of this host.

  /// Whether `wanted` is its name, or the number of one of its processes.
  bool is(const std::string& wanted) const;
};

/// The jobs on this host whose launchers this user may look at, the oldest first.
std::vector<JobView> running_jobs();

}  // namespace paceline::tools
