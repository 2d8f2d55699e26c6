#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paceline/base/error.h"
#include "paceline/comm/status/status_view.h"

namespace paceline::launch {

struct WatchOptions {
  /// A worker that lives but sends no heartbeat for as long is silent, which is a failure. 0: never.
  Nanoseconds silence = std::chrono::seconds(4);
  /// Ranks that wait in an operation for as long make the watch say where all ranks are. 0: never.
  Nanoseconds stuck = std::chrono::seconds(30);
};

/// Tells from the job status which workers are silent and which wait in vain. Counts only what it has observed: if it
/// was not called for a while, it may be the machine that stood still, and it starts anew.
class JobWatch {
 public:
  /// How often look() should be called.
  static constexpr Nanoseconds kPeriod = std::chrono::milliseconds(250);
  /// How long ranks must have waited for each other before that is taken for a standstill, or `stuck` if that is less.
  static constexpr Nanoseconds kStandstill = std::chrono::seconds(5);
  /// The state letter of a process (proc(5)); 'X' if it is gone.
  using StateOf = std::function<char(pid_t)>;

  JobWatch(const JobStatus& job_status, WatchOptions options);
  JobWatch(const JobStatus& job_status, WatchOptions options, StateOf state_of);

  struct Silent {
    int slot;
    Error cause;
  };
  struct News {
    std::optional<Silent> silent = {};
    std::string stuck = {};  ///< A text of whole lines, once each time that ranks begin to wait in vain,
    Nanoseconds waited{};    ///< and for how long they have.
    std::optional<std::string> standstill = {};  ///< Why none of the job's ranks can go on, where all are on this host.
  };
  News look(Nanoseconds at);

  /// Whether a rank has waited in one operation for `long_enough`, or is known to be stuck.
  bool waits_in_vain(Nanoseconds long_enough) const;

 private:
  struct Slot {
    std::uint64_t heartbeat = 0;
    Nanoseconds silent{};
    std::uint64_t waits_in = 0;  // its operation's sequence; 0: it does not wait
    Nanoseconds waited{};
  };

  bool is_silent(Slot& slot, const RankView& view, Nanoseconds passed);
  Error silence_of(const RankView& view, Nanoseconds silent) const;

  const JobStatus& job_status_;
  const WatchOptions options_;
  const StateOf state_of_;
  std::vector<Slot> slots_;
  std::optional<Nanoseconds> looked_;
  bool told_ = false;  // that ranks are stuck
};

/// Where ranks are and which of them the others wait for: of all the job, or as far as this host's job status shows it.
std::string stuck_text(const std::vector<RankView>& views, Nanoseconds at, Nanoseconds waited, bool all = false);
/// The rank or ranks that the others wait for, and where they are.
std::string root_suspect(const std::vector<RankView>& views, Nanoseconds at, bool all = false);
/// The communicator and number of the operation that most ranks wait in; nothing if none waits.
std::optional<std::pair<std::string, std::uint64_t>> most_waited_in(const std::vector<RankView>& views);

}  // namespace paceline::launch
