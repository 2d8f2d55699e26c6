#pragma once

#include <sys/types.h>

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/base/exit_codes.h"
#include "paceline/store/failure.h"

namespace paceline::launch {

/// How a worker ended.
struct WorkerEnd {
  int rank = 0;
  int status = 0;         ///< As waitpid() gives it.
  Nanoseconds after{};    ///< Since the start of the job.
  bool stopped = false;   ///< The launcher had sent it SIGTERM or SIGKILL.
  bool unseen = false;    ///< It died in its communicator, which what started it hid with a 0.
  bool by_shell = false;  ///< `status` is a signal, as 128 + signal was what started it exited with.
  /// What the process that joined had given exit() after it left its communicators, where what started it made 0 of it:
  /// a script may mean that, unless the rank also reported a failure.
  int hidden_code = 0;
  /// With success, but in its communicator: no failure, unless others waited for it there.
  bool left = false;
  bool too_early = false;                   ///< With success, but before it joined, and others waited for it.
  std::optional<StoreFailure> report = {};  ///< What it had said itself.
  std::string out_of_memory = {};           ///< The evidence, if that is why it was killed.
  std::optional<Error> silence = {};        ///< It lived, but sent no heartbeat; the launcher ended it for that.
  std::string host = {};
  pid_t pid = 0;
  std::string last_known = {};  ///< "after all_reduce #41 (...), step 17"; empty if it did not use the library.
  std::string node = {};        ///< In a job over several hosts: "node 1 (host b at 10.0.0.2)".

  bool failed() const { return status != 0 || unseen || too_early || silence; }
};

/// "killed by signal 9 (SIGKILL)" or "exited with code 3".
std::string describe_status(int status);
/// The same, with what hides it.
std::string describe_end(const WorkerEnd& end);
/// That of a job that failed for this cause: its worker's, but kExitMismatch where ranks disagreed.
int exit_code_of(const WorkerEnd& cause);
/// As a shell gives it: 128 + signal for a killed process.
int exit_code_of(int status);

/// The end that caused the others: that of a worker that was ended for its silence, else the first failure of a worker
/// that was not stopped and did not itself say that it only saw another fail; where all said so, that of one that left
/// its communicator with success, else of the rank that was the first to report it, which is the one that gave up.
/// `ends` is in the order of time. nullptr when none failed.
const WorkerEnd* first_cause(const std::vector<WorkerEnd>& ends, std::optional<int> first_to_report = {});

/// Whether it was stopped, or said itself that another one failed.
bool only_saw_another_fail(const WorkerEnd& end);

/// "ranks 0-1, 3", those that only the launcher's signals ended; empty if there are none.
std::string killed_ranks(const std::vector<WorkerEnd>& ends);

/// What the user reads where no worker's end but `trouble` caused the job's.
std::string trouble_text(const std::vector<WorkerEnd>& ends, const std::string& trouble, Fault fault);

/// The text that tells the user, first cause first. `last_errors` are the last lines of its stderr.
std::string failure_text(const std::vector<WorkerEnd>& ends, const WorkerEnd& first,
                         const std::deque<std::string>& last_errors);

}  // namespace paceline::launch
