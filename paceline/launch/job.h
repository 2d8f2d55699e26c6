#pragma once

#include <signal.h>
#include <sys/types.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/base/unique_fd.h"
#include "paceline/comm/status/status_view.h"
#include "paceline/launch/failure/ending.h"
#include "paceline/launch/local_workers.h"
#include "paceline/launch/nodes/nodes.h"
#include "paceline/launch/nodes/remote_launchers.h"
#include "paceline/launch/output.h"
#include "paceline/launch/resources.h"
#include "paceline/launch/signals.h"
#include "paceline/launch/worker.h"
#include "paceline/launch/worker_environment.h"
#include "paceline/store/server.h"

namespace paceline::launch {

/// One host's part of a job, from its launcher's side: meets the other hosts' launchers, starts the workers, waits for
/// what happens to any of them, and sees to it that all of them end.
class Supervisor {
 public:
  Supervisor(const RunOptions& options, std::unique_ptr<JobNodes> nodes, pid_t launcher, const sigset_t& mask)
      : options_(options),
        nodes_(std::move(nodes)),
        store_(nodes_ ? nodes_->store() : &own_store_.emplace()),
        launcher_(watch_process(launcher)),
        // An orphan before launcher_ was opened: the number may be another process's by now.
        orphaned_(::getppid() != launcher),
        signals_(BlockedSignals::make_signalfd()),
        mask_(mask),
        output_(options.tag),
        input_open_(options.nodes && options.nodes->ends_with_input) {}

  int run();

 private:
  /// How far the end of the job has come.
  enum class Phase {
    Running,
    Leaving,      // the workers were told (by the job status, the store, Ctrl-C) and get the grace to end
    Terminating,  // they got SIGTERM
    Killing,
  };

  // Beginning.
  bool meet_others();
  bool start_workers();
  JobFacts facts();
  WorkerProgram program(int world_size) const;

  // Waiting.
  bool workers_left() const { return workers_ && workers_->any_alive(); }
  void wait_for_events(bool workers_matter);
  void handle_signals();
  void handle_input();
  void pass_on(const UserSignal& signal);
  void hear_others();
  void reap();
  void watch();
  void wait_for_others();

  // Ending.
  void interrupt(int signal, std::string how);
  void process_ended(pid_t pid, int status);
  void fail(const JobOutcome& job_outcome);
  void leave(std::chrono::milliseconds grace);
  void advance_when_due();
  void say_who_is_waited_for();
  void stop_workers();
  void end_everything();
  std::string killed() const;
  std::deque<std::string> last_errors(int rank) const;
  int conclude();
  JobOutcome judge();
  JobOutcome lost_output() const;

  const RunOptions& options_;
  std::unique_ptr<JobNodes> nodes_;  // null where this host is all of the job
  std::optional<StoreServer> own_store_;
  StoreServer* const store_;  // null on other nodes than 0
  const UniqueFd launcher_;
  bool orphaned_;
  const UniqueFd signals_;
  const sigset_t mask_;
  JobOutput output_;
  UniqueFd port_;
  RemoteLaunchers remotes_;
  std::optional<LocalWorkers> workers_;
  JobEnding ending_{store_, nodes_.get()};
  Phase phase_ = Phase::Running;
  std::optional<Deadline> next_phase_;
  std::optional<Deadline> next_notice_;
  UserSignals user_signals_;
  std::string interrupted_how_;
  int interrupted_by_ = 0;      // the signal that ended the job
  std::vector<RankView> hung_;  // where ranks were when a signal ended their waiting
  bool impatient_ = false;      // a second signal came: also give up on the output
  int start_exit_code_ = 0;     // when a worker could not be started
  bool input_open_;             // the job ends when it does
  bool waits_for_others_ = false;
};

}  // namespace paceline::launch
