#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/base/error.h"
#include "paceline/comm/status/job_status.h"
#include "paceline/comm/status/status_view.h"
#include "paceline/launch/failure/watch.h"
#include "paceline/launch/failure/worker_end.h"
#include "paceline/launch/memory_cgroup.h"
#include "paceline/launch/options.h"
#include "paceline/launch/output.h"
#include "paceline/launch/worker.h"
#include "paceline/launch/worker_environment.h"

namespace paceline::launch {

/// The workers of this host: their processes, and the job status that they share with this launcher.
class LocalWorkers {
 public:
  /// Makes the job status; starts nobody. `options` must outlive this. Throws System.
  LocalWorkers(const RunOptions& options, JobFacts job);

  struct Problem {
    std::string text;
    int exit_code;
  };
  /// Starts them, up to the first that cannot be started. `like` says how, but for the environment.
  std::optional<Problem> start(WorkerProgram like, JobOutput& output);

  /// To be told of each process that was reaped: how the worker ended, if it was one.
  std::optional<WorkerEnd> ended(pid_t pid, int status);
  bool any_alive() const;
  std::vector<int> ranks_alive() const;
  /// A signal from outside of the job, to all that live and what they have started.
  void pass_on(int signal);
  /// The launcher's own, after which nobody's end is a cause.
  void stop(int signal);

  /// What the job status shows; nothing if it was looked at less than JobWatch::kPeriod ago.
  JobWatch::News look();
  /// Whether the only ones left are silent, and so take no SIGTERM.
  bool only_silent_left() const;
  /// Whether a rank has waited for as long in one operation.
  bool wait_in_vain(Nanoseconds long_enough) const { return watch_.waits_in_vain(long_enough); }
  std::vector<RankView> views() const { return views_of(job_status_, now()); }

  /// Ends their waits with this, unless they have ended with another one.
  void fail(const Error& cause) { job_status_.fail(cause); }

  /// The place of the rank among them; nothing if it is another host's.
  std::optional<int> slot_of(int rank) const;

 private:
  struct Worker {
    pid_t pid;
    bool alive = true;
    bool stopped = false;
  };

  void look_through_script(const RankView& view, pid_t started, WorkerEnd& end) const;

  const RunOptions& options_;
  JobFacts job_;
  JobStatus job_status_;
  JobWatch watch_;
  const MemoryGroup memory_;
  const Nanoseconds began_ = now();
  std::vector<Worker> workers_;  // by slot
  std::optional<Deadline> next_look_;
  std::optional<JobWatch::Silent> silent_;
};

}  // namespace paceline::launch
