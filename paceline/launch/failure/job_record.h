#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "paceline/launch/failure/worker_end.h"
#include "paceline/launch/nodes/nodes.h"

namespace paceline::launch {

/// How a job's workers ended and what else ended the job, in the order in which this launcher heard of it; and from
/// that, why it ended. On node 0, of all hosts.
class JobRecord {
 public:
  void add(WorkerEnd end) { ends_.push_back(std::move(end)); }
  /// Something that is no worker's end: a silent worker, a lost host, what another launcher decided. The first counts.
  void add(const JobOutcome& trouble);
  /// The rank had ended with success before it joined, and others waited for it.
  void ended_too_early(int rank);

  /// The first to tell the store of a failure. It counts where all that failed only say that another one did.
  void reported_first(int rank) { first_to_report_ = rank; }

  const std::vector<WorkerEnd>& ends() const { return ends_; }
  /// The end that caused the job's; nullptr if none did.
  const WorkerEnd* cause() const;
  /// What the user should read, and the exit code. `last_errors` are the last lines of the stderr of cause()'s rank.
  JobOutcome job_outcome(const std::deque<std::string>& last_errors) const;

 private:
  std::vector<WorkerEnd> ends_;
  std::optional<JobOutcome> trouble_;
  std::size_t before_trouble_ = 0;  // how many of ends_
  std::optional<int> first_to_report_;
};

}  // namespace paceline::launch
