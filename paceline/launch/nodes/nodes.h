#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/base/error.h"
#include "paceline/comm/status/status_view.h"
#include "paceline/launch/failure/worker_end.h"
#include "paceline/launch/options.h"
#include "paceline/launch/user_signals.h"
#include "paceline/net/secret.h"
#include "paceline/store/server.h"

namespace paceline::launch {

/// Where the workers of one host stand among all of a job.
struct Placement {
  int node = 0, nodes = 1;
  int first_rank = 0, world_size = 0;
  std::string who;  ///< "node 1 (host b at 10.0.0.2)"
  std::string job;
  std::string store_address;
  std::string master_address;
  int master_port = 0;
  std::string bind;              ///< PACELINE_BIND
  std::optional<Secret> secret;  ///< For the workers.
};

/// Why a job ends before its workers do.
struct JobOutcome {
  std::string text;
  int exit_code = 0;
  int signal = 0;               ///< If a signal to a launcher is the reason.
  int rank = Error::kNoRank;    ///< The one that failed, or the first one of a host that was lost.
  Fault fault = Fault::GaveUp;  ///< What workers are told that it is.

  Error cause() const { return Error(fault, text, Error::kNoRank, rank); }
};

/// The last lines of stderr, by rank.
using LastErrors = std::map<int, std::deque<std::string>>;

/// The other launchers of a job over several hosts, as this host's launcher sees them. One failure anywhere ends the
/// job everywhere, and node 0 says in the end with what. For one thread; nothing blocks.
class JobNodes {
 public:
  virtual ~JobNodes() = default;

  /// Readable when advance() has something to do; also when due() is over.
  virtual int fd() const = 0;
  virtual std::optional<Nanoseconds> due() const = 0;
  virtual void advance() = 0;
  /// What the user should read meanwhile.
  virtual std::vector<std::string> take_lines() = 0;

  /// Once all nodes have joined.
  virtual const std::optional<Placement>& placement() const = 0;
  /// Once the job has to end, for a reason that lies outside of this host.
  virtual const std::optional<JobOutcome>& job_outcome() const = 0;

  // What this host says.

  /// One of its workers has ended.
  virtual void worker_ended(const WorkerEnd& end) = 0;
  /// Its ranks wait in vain, for as long already: all hosts are asked where theirs are, and lines come of it.
  virtual void ranks_wait(Nanoseconds waited) = 0;
  /// Whether, since the last call, node 0 has asked that.
  virtual bool take_question() = 0;
  virtual void answer(const std::vector<RankView>& views) = 0;
  /// Has come to this launcher, for the workers of all.
  virtual void pass_on(const UserSignal& signal) = 0;
  /// Those that have come to other launchers since the last call.
  virtual std::vector<UserSignal> take_signals() = 0;
  /// The job has to end. On node 0 for all reasons; on others, for one that is no worker's end.
  virtual void announce(const JobOutcome& job_outcome) = 0;
  /// No worker is left on it. `errors` are of those that failed.
  virtual void finished(const LastErrors& errors) = 0;
  /// Nobody is left to wait for.
  virtual bool all_finished() const = 0;
  /// How the job has ended, for other nodes than 0: what node 0 said, or why that is not known.
  virtual std::optional<JobOutcome> outcome() const = 0;

  // What node 0 has beside that.

  /// Null on other nodes.
  virtual StoreServer* store() = 0;
  /// HOST:PORT, as others reach it.
  virtual std::string rendezvous() const = 0;
  /// What has happened to other nodes' workers since the last call.
  virtual std::vector<WorkerEnd> take_ends() = 0;
  virtual const LastErrors& last_errors() const = 0;
  /// Tells all how the job has ended.
  virtual void conclude(const JobOutcome& outcome) = 0;
};

/// Listens at the rendezvous, or begins to look for it. Throws InvalidArgument and System.
std::unique_ptr<JobNodes> make_coordinator(const RunOptions& options);
std::unique_ptr<JobNodes> make_agent(const RunOptions& options);

}  // namespace paceline::launch
