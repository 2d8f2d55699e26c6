#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "paceline/launch/failure/job_record.h"
#include "paceline/launch/local_workers.h"
#include "paceline/launch/nodes/nodes.h"
#include "paceline/store/server.h"

namespace paceline::launch {

/// What a launcher does with a failure: it tells all who wait, so that all of them end with the same, first cause: this
/// host's workers by the job status, those that ask the store, and the other launchers. And it remembers, for the
/// summary.
class JobEnding {
 public:
  /// `store` is null on other nodes than 0, `nodes` is null where this host is all of the job.
  JobEnding(StoreServer* store, JobNodes* nodes) : store_(store), nodes_(nodes) {}
  /// This host's workers, once there are any.
  void watch_over(LocalWorkers* workers) { workers_ = workers; }

  /// A worker has ended, here or on another host; whether the job has to end for it.
  bool worker_ended(WorkerEnd end);
  /// A worker has ended with success before it joined, and others wait for it.
  void worker_left_too_early();
  /// What is no worker's end ends the job.
  void fail(const JobOutcome& job_outcome);

  /// What other nodes say of how the job has ended; the first one counts.
  void hear(const JobOutcome& job_outcome);
  bool has_heard() const { return heard_; }
  /// Tells the other launchers, unless it is they who told this one.
  void announce(const JobOutcome& job_outcome);
  /// As the others should read what happened to this launcher.
  JobOutcome of_this_host(JobOutcome job_outcome) const;

  /// How the workers have ended so far; on node 0, all hosts'.
  const std::vector<WorkerEnd>& ends() const { return record_.ends(); }
  /// What caused the end, as the user should read it. `last_errors` gives the last lines of a rank's stderr.
  JobOutcome job_outcome(const std::function<std::deque<std::string>(int)>& last_errors);

 private:
  void tell_workers(const JobOutcome& job_outcome);

  StoreServer* const store_;
  JobNodes* const nodes_;
  LocalWorkers* workers_ = nullptr;
  JobRecord record_;
  bool heard_ = false;
};

}  // namespace paceline::launch
