#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "paceline/base/unique_fd.h"
#include "paceline/launch/nodes/nodes.h"
#include "paceline/launch/options.h"
#include "paceline/launch/output.h"
#include "paceline/launch/worker.h"

namespace paceline::launch {

/// The launchers on other hosts that this one has started, by ssh or what takes its place. They get the job's secret on
/// their standard input, and end when that is closed: when this process ends, however it does.
class RemoteLaunchers {
 public:
  /// Starts those that `options` name, which find node 0 at `rendezvous`. `mask` is their signal mask.
  void start(const NodeOptions& options, const std::string& rendezvous, const sigset_t& mask, JobOutput& output);

  bool any_alive() const;
  /// To be told of every process that has ended.
  void ended(pid_t pid, int status);
  /// What the first of them that has ended failed with.
  std::optional<JobOutcome> failure() const { return failure_; }

 private:
  struct Started {
    std::string host;
    std::string command;  // its program's name
    pid_t pid;
    UniqueFd input;
    bool alive = true;
  };

  std::vector<Started> started_;
  std::optional<JobOutcome> failure_;
};

}  // namespace paceline::launch
