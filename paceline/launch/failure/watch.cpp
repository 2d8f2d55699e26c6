#include "paceline/launch/failure/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "paceline/base/process_tree.h"
#include "paceline/launch/failure/standstill.h"
#include "paceline/launch/rank_list.h"

namespace paceline::launch {
namespace {

// Later than this, and not the workers but the watch itself may have stood still.
constexpr Nanoseconds kLate = 4 * JobWatch::kPeriod;

char state_in_proc(pid_t pid) {
  if (!proc_is_own()) return '?';
  const auto process = read_process(pid);
  return process ? process->state : 'X';
}

const char* reason_for(char state) {
  switch (state) {
    case 'T': return "it is stopped (state T: SIGSTOP, or Ctrl-Z); kill -CONT would have let it go on";
    case 'D':
      return "it hangs in the kernel (state D, uninterruptible sleep): a disk or a network file system does not "
             "answer";
    case 'Z':
    case 'X': return "its process has ended, though what started it lives on";
    case '?': return "whether it is stopped is not known, since /proc does not show this PID namespace";
    default: return "it is alive, but none of its threads runs (frozen, or starved by other processes?)";
  }
}

/// Who waits where.
std::map<std::pair<std::string, std::uint64_t>, std::vector<int>> waiting_in(const std::vector<RankView>& views) {
  std::map<std::pair<std::string, std::uint64_t>, std::vector<int>> waiting;
  for (const RankView& view : views) {
    const OperationView* const in = view.ended ? nullptr : view.waiting();
    if (in != nullptr) waiting[{in->communicator, in->number}].push_back(view.rank);
  }
  return waiting;
}

}  // namespace

JobWatch::JobWatch(const JobStatus& job_status, WatchOptions options) : JobWatch(job_status, options, state_in_proc) {}

JobWatch::JobWatch(const JobStatus& job_status, WatchOptions options, StateOf state_of)
    : job_status_(job_status),
      options_(options),
      state_of_(std::move(state_of)),
      slots_(static_cast<std::size_t>(job_status.slots())) {}

JobWatch::News JobWatch::look(Nanoseconds at) {
  const Nanoseconds passed = at - looked_.value_or(at);
  looked_ = at;
  if (passed > kLate) {
    for (Slot& slot : slots_) slot.silent = slot.waited = Nanoseconds(0);
  }
  const Nanoseconds counted = passed > kLate ? Nanoseconds(0) : passed;
  News news;
  const std::vector<RankView> views = views_of(job_status_, at);
  Nanoseconds longest{};
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (is_silent(slot, views[i], counted) && !news.silent) {
      news.silent = Silent{static_cast<int>(i), silence_of(views[i], slot.silent)};
    }
    const OperationView* const waiting = views[i].ended ? nullptr : views[i].waiting();
    const std::uint64_t waits_in = waiting != nullptr ? waiting->sequence : 0;
    slot.waited = waits_in != 0 && waits_in == slot.waits_in ? slot.waited + counted : Nanoseconds(0);
    slot.waits_in = waits_in;
    longest = std::max(longest, slot.waited);
  }
  const bool stuck = options_.stuck > Nanoseconds(0) && longest >= options_.stuck;
  const bool all = job_status_.header().world_size == job_status_.slots();
  if (stuck && !told_) news.stuck = stuck_text(views, at, longest, all);
  news.waited = longest;
  if (job_status_.header().world_size == job_status_.slots()) {
    const Nanoseconds least = options_.stuck > Nanoseconds(0) ? std::min(options_.stuck, kStandstill) : kStandstill;
    news.standstill = standstill(views, at, least);
  }
  told_ = stuck;
  return news;
}

bool JobWatch::is_silent(Slot& slot, const RankView& view, Nanoseconds passed) {
  const bool beat = view.heartbeat != std::exchange(slot.heartbeat, view.heartbeat);
  if (beat || view.ended || !view.beats) {
    slot.silent = Nanoseconds(0);
    return false;
  }
  slot.silent += passed;
  if (options_.silence == Nanoseconds(0) || slot.silent < options_.silence) return false;
  if (state_of_(view.pid) != 't') return true;
  slot.silent = Nanoseconds(0);  // under a debugger
  return false;
}

Error JobWatch::silence_of(const RankView& view, Nanoseconds silent) const {
  const char state = state_of_(view.pid);
  const bool gone = state == 'X' || state == 'Z';
  return Error(gone ? Fault::PeerDied : Fault::PeerSilent,
               fmt::format("rank {} (host {}, pid {}) sent no heartbeat for {:.1f} s, {}: {}", view.rank,
                           job_status_.header().host, view.pid, seconds(silent), last_known(view), reason_for(state)),
               Error::kNoRank, view.rank);
}

bool JobWatch::waits_in_vain(Nanoseconds long_enough) const {
  return told_ ||
         std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.waited >= long_enough; });
}

std::string stuck_text(const std::vector<RankView>& views, Nanoseconds at, Nanoseconds waited, bool all) {
  std::string text = fmt::format("paceline: [E412 STUCK] no progress for {:.0f} s\n", seconds(waited));
  text += rank_table(views, at);
  text += fmt::format("  root suspect: {}\n", root_suspect(views, at, all));
  return text + "  the job goes on waiting until PACELINE_TIMEOUT (run --timeout); `paceline ps` shows more\n";
}

std::optional<std::pair<std::string, std::uint64_t>> most_waited_in(const std::vector<RankView>& views) {
  const auto waiting = waiting_in(views);
  const auto most = std::max_element(waiting.begin(), waiting.end(),
                                     [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (most == waiting.end()) return std::nullopt;
  return most->first;
}

std::string root_suspect(const std::vector<RankView>& views, Nanoseconds at, bool all) {
  const auto most = most_waited_in(views);
  if (!most) return "none: no rank waits any longer";
  const std::string& communicator = most->first;
  const std::uint64_t number = most->second;
  const std::vector<int> ranks = waiting_in(views).at(*most);
  std::vector<const RankView*> elsewhere;
  for (const RankView& view : views) {
    const OperationView* const in = view.ended ? nullptr : view.waiting();
    if (in == nullptr || in->communicator != communicator || in->number != number) elsewhere.push_back(&view);
  }
  const char* const wait = ranks.size() == 1 ? "waits" : "wait";
  const bool joining = number == 0;
  const std::string others = joining
                                 ? fmt::format("{} {} to join '{}'", join_ranks(ranks), wait, communicator)
                                 : fmt::format("{} {} in #{}{}", join_ranks(ranks), wait, number,
                                               communicator == "world" ? "" : fmt::format(" of '{}'", communicator));
  if (elsewhere.empty() && all && joining) {
    return fmt::format("none: {}, but do not find each other; has an earlier communicator had this name?", others);
  }
  if (elsewhere.empty() && all) return fmt::format("none: {}; what some have sent does not reach the others", others);
  if (elsewhere.empty()) {
    return fmt::format("none on this host: {}; ranks of other hosts, or the network between, are late", others);
  }
  std::string text;
  for (const RankView* const view : elsewhere) {
    // How far it came in the communicator in which the others wait.
    const auto last = std::find_if(view->operations.begin(), view->operations.end(),
                                   [&](const auto& one) { return one.communicator == communicator && one.done; });
    if (!text.empty()) text += "; ";
    text += fmt::format("rank {}{}", view->rank, view->host.empty() ? "" : " on " + view->host);
    if (last != view->operations.end()) text += fmt::format(" is at #{},", last->number);
    text += fmt::format(" {}", whereabouts(*view, at));
    if (view->beats && !view->ended) text += fmt::format(", last seen {:.1f} s ago", seconds(view->beat_age));
  }
  return fmt::format("{}, while {}", text, others);
}

}  // namespace paceline::launch
