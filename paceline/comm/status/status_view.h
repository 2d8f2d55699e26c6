#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/comm/status/job_status.h"

namespace paceline {

/// One of a worker's last operations, as its page of the job status shows it.
struct OperationView {
  std::uint64_t sequence = 0;  ///< Its place among all of the worker's.
  std::uint64_t number = 0;    ///< Its place in the communicator, as messages have it.
  std::string communicator = {};
  std::uint64_t communicator_id = 0;  ///< As in CommunicatorView; 0: unknown.
  std::string text = {};              ///< "all_reduce #42 'bucket 3' (float32 x 1000, sum)"
  Nanoseconds entered{};              ///< As now() has it.
  Nanoseconds waits_from{};
  Nanoseconds completed{};
  bool done = false, failed = false, timed = false;
  bool waits = false;  ///< The worker's thread is in it.
};

/// A communicator that a worker is in.
struct CommunicatorView {
  std::uint64_t id = 0;       ///< The same on all ranks.
  std::uint64_t members = 0;  ///< Ranks.
  std::uint64_t entered = 0;  ///< The number of the last operation that the worker has entered there.
};

/// What a job status says of one worker. Nothing of it is trusted: what makes no sense is left out.
struct RankView {
  int rank = 0;
  pid_t pid = 0;       ///< Of the process that calls the library, or, before it does, of the one that was started.
  bool ended = false;  ///< The launcher has seen it end.
  bool beats = false;  ///< It should send heartbeats: it has a communicator of Comm::from_env().
  std::uint64_t heartbeat = 0;
  Nanoseconds beat_age{};
  std::uint64_t step = 0;                      ///< 0: unknown.
  std::vector<OperationView> operations = {};  ///< The newest first.
  std::vector<CommunicatorView> communicators = {};
  bool unclear = false;               ///< It may wait for more than the list shows.
  std::optional<int> exit_code = {};  ///< What its process gave exit().
  std::string host = {}, state = {};  ///< Of a rank of another host, as that host has them.

  /// The operation that its thread is in; nullptr if it is in none.
  const OperationView* waiting() const;
  /// The newest that is complete; nullptr if none is known.
  const OperationView* last_completed() const;
};

/// What the page of slot `slot` shows at `at`, which is now(). Does not block.
RankView view_of(const JobStatus& job_status, int slot, Nanoseconds at);
std::vector<RankView> views_of(const JobStatus& job_status, Nanoseconds at);

/// "in all_reduce #42 (...) since 31 s", "user code after all_reduce #41 (...)", "before its first operation".
std::string whereabouts(const RankView& view, Nanoseconds at);
/// "after all_reduce #41 (...)" or "before its first operation", with the step where it is known.
std::string last_known(const RankView& view);

/// One line a rank: pid, state, heartbeat's age, step, last operation, what it waits in.
std::string rank_table(const std::vector<RankView>& views, Nanoseconds at);
/// The newest `most` operations of each rank.
std::string operations_text(const std::vector<RankView>& views, std::size_t most, Nanoseconds at);

/// "running", "sleeping", "stopped (T)", ...: as the kernel has it.
std::string process_state(pid_t pid);

}  // namespace paceline
