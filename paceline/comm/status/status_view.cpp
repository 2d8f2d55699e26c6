#include "paceline/comm/status/status_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "paceline/base/exit_codes.h"
#include "paceline/base/process_tree.h"
#include "paceline/comm/signature.h"
#include "paceline/comm/status/status_writer.h"

namespace paceline {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

using Words = decltype(StatusName::words);

/// An operation as it stood on the worker's page, whole.
struct Snapshot {
  std::uint64_t sequence, number, count, what;
  std::int64_t entered, waits_from, completed;
  Words communicator, label;
};

Words words_of(const StatusOperation::Name& name) {
  Words words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = name[i].load(kRelaxed);
  return words;
}

/// Nothing while the worker writes it, or where there is none yet. Words are copied before anything is made of them: a
/// worker at full speed fills all entries again within a microsecond.
std::optional<Snapshot> snapshot(const StatusOperation& from) {
  const std::uint64_t sequence = from.sequence.load(std::memory_order_acquire);
  if (sequence == 0) return std::nullopt;
  const Snapshot one{.sequence = sequence,
                     .number = from.number.load(kRelaxed),
                     .count = from.count.load(kRelaxed),
                     .what = from.what.load(kRelaxed),
                     .entered = from.entered.load(kRelaxed),
                     .waits_from = from.waits_from.load(kRelaxed),
                     .completed = from.completed.load(kRelaxed),
                     .communicator = words_of(from.communicator),
                     .label = words_of(from.label)};
  std::atomic_thread_fence(std::memory_order_acquire);
  return from.sequence.load(kRelaxed) == sequence ? std::optional(one) : std::nullopt;
}

std::string text_of(const Words& words) {
  std::string text;
  for (const std::uint64_t bytes : words) {
    for (int i = 0; i < 8; ++i) {
      const char c = static_cast<char>(bytes >> 8 * i & 0xff);
      if (c == '\0') return text;
      text += c >= ' ' && c <= '~' ? c : '?';
    }
  }
  return text;
}

/// A point in time that can be: later ones are now.
Nanoseconds time_of(std::int64_t at, Nanoseconds latest) { return std::clamp(Nanoseconds(at), Nanoseconds(0), latest); }

std::string describe_operation(const Snapshot& from, const std::string& communicator) {
  const auto kind = static_cast<std::uint8_t>(from.what);
  if (kind == StatusOperation::kJoin) return fmt::format("joining '{}'", communicator);
  const auto dtype = static_cast<std::uint8_t>(from.what >> 8), reduce = static_cast<std::uint8_t>(from.what >> 16);
  const bool known = kind <= static_cast<std::uint8_t>(Collective::AllToAll) &&
                     dtype <= static_cast<std::uint8_t>(Dtype::UInt8) &&
                     reduce <= static_cast<std::uint8_t>(ReduceOp::Max);
  std::string text;
  if (known) {
    Signature signature{};
    signature.number = from.number;
    signature.count = signature.call_count = from.count;
    signature.kind = static_cast<Collective>(kind);
    signature.dtype = static_cast<Dtype>(dtype);
    signature.reduce = static_cast<ReduceOp>(reduce);
    signature.root = static_cast<std::int16_t>(from.what >> 32);
    const std::string label = text_of(from.label);
    std::memcpy(signature.label, label.data(), std::min(label.size(), sizeof signature.label - 1));
    text = describe(signature);
  } else {
    text = fmt::format("operation #{}", from.number);
  }
  return communicator == "world" ? text : fmt::format("{} of '{}'", text, communicator);
}

OperationView view_of(const StatusSlot& slot, const Snapshot& from, Nanoseconds at) {
  OperationView to;
  to.sequence = from.sequence;
  to.number = from.number;
  to.communicator = text_of(from.communicator);
  to.text = describe_operation(from, to.communicator);
  const std::uint64_t place = (from.what >> 24 & 0xff) - 1;
  to.communicator_id = place < StatusSlot::kCommunicators ? slot.communicators[place].name.load(kRelaxed) : 0;
  to.entered = time_of(from.entered, at);
  to.failed = from.completed == StatusOperation::kFailed;
  to.timed = from.completed > StatusOperation::kDone;
  to.done = from.completed != 0 && !to.failed;
  to.waits = from.completed == 0 && from.waits_from != 0;
  to.waits_from = time_of(from.waits_from, at);
  to.completed = time_of(from.completed, at);
  return to;
}

std::string age(Nanoseconds since, Nanoseconds at) {
  const double passed = seconds(at - since);
  return passed < 10 ? fmt::format("{:.1f} s", passed) : fmt::format("{:.0f} s", passed);
}

}  // namespace

const OperationView* RankView::waiting() const {
  const auto found = std::find_if(operations.begin(), operations.end(), [](const auto& one) { return one.waits; });
  return found == operations.end() ? nullptr : &*found;
}

const OperationView* RankView::last_completed() const {
  const auto found = std::find_if(operations.begin(), operations.end(), [](const auto& one) { return one.done; });
  return found == operations.end() ? nullptr : &*found;
}

RankView view_of(const JobStatus& job_status, int slot, Nanoseconds at) {
  const StatusWorker& worker = job_status.header().workers[slot];
  const StatusSlot& from = job_status.slot(slot);
  RankView view{.rank = worker.rank.load(kRelaxed), .pid = worker.pid.load(kRelaxed)};
  view.ended = worker.ended.load(std::memory_order_acquire) != 0;
  const std::int64_t pid = from.pid.load(kRelaxed);
  if (pid > 0 && pid <= INT32_MAX) view.pid = static_cast<pid_t>(pid);
  view.beats = from.users.load(kRelaxed) != 0;
  view.heartbeat = from.heartbeat.load(std::memory_order_acquire);
  view.beat_age = at - time_of(from.beat_at.load(kRelaxed), at);
  view.step = from.step.load(kRelaxed);
  for (const StatusOperation& operation : from.operations) {
    auto one = snapshot(operation);
    if (!one) one = snapshot(operation);  // it was written to in between: once more, then without it
    if (one) view.operations.push_back(view_of(from, *one, at));
  }
  for (const StatusCommunicator& one : from.communicators) {
    const std::uint64_t id = one.name.load(kRelaxed);
    if (id != 0) view.communicators.push_back({id, one.members.load(kRelaxed), one.entered.load(kRelaxed)});
  }
  view.unclear = from.unclear.load(kRelaxed) != 0;
  const std::uint32_t exited = from.exited.load(kRelaxed);
  if (exited >= StatusSlot::kExited) view.exit_code = static_cast<int>(exited & 0xff);
  std::sort(view.operations.begin(), view.operations.end(),
            [](const auto& a, const auto& b) { return a.sequence > b.sequence; });
  return view;
}

std::vector<RankView> views_of(const JobStatus& job_status, Nanoseconds at) {
  std::vector<RankView> views;
  for (int slot = 0; slot < job_status.slots(); ++slot) views.push_back(view_of(job_status, slot, at));
  return views;
}

std::string last_known(const RankView& view) {
  const OperationView* const last = view.last_completed();
  std::string text = last == nullptr ? "before its first operation" : "after " + last->text;
  if (view.step != 0) text += fmt::format(", step {}", view.step);
  return text;
}

std::string whereabouts(const RankView& view, Nanoseconds at) {
  if (view.ended) return fmt::format("ended {}", last_known(view));
  const OperationView* const waiting = view.waiting();
  if (waiting != nullptr) return fmt::format("in {} since {}", waiting->text, age(waiting->waits_from, at));
  const OperationView* const last = view.last_completed();
  return last == nullptr ? "user code, before its first operation" : "user code after " + last->text;
}

std::string process_state(pid_t pid) {
  if (!proc_is_own()) return "unknown";
  const auto process = pid > 0 ? read_process(pid) : std::nullopt;
  switch (process ? process->state : 'X') {
    case 'R': return "running";
    case 'S': return "sleeping";
    case 'D': return "disk sleep (D)";
    case 'T': return "stopped (T)";
    case 't': return "traced (t)";
    case 'Z': return "zombie";
    case 'X': return "gone";
    default: return std::string("state ") + process->state;
  }
}

std::string rank_table(const std::vector<RankView>& views, Nanoseconds at) {
  std::size_t widest = 0;
  for (const RankView& view : views) widest = std::max(widest, view.host.size());
  const auto column = [&](const std::string& host) {
    return widest == 0 ? "" : fmt::format("{:<{}}  ", host, std::max<std::size_t>(widest, 4));
  };
  std::string text = fmt::format("  {:>5} {}{:>8}  {:<14} {:>7} {:>7}  {}\n", "rank", column("host"), "pid", "state",
                                 "beat", "step", "where");
  for (const RankView& view : views) {
    const std::string state = !view.state.empty() ? view.state : view.ended ? "ended" : process_state(view.pid);
    text += fmt::format("  {:>5} {}{:>8}  {:<14} {:>7} {:>7}  {}\n", view.rank, column(view.host), view.pid, state,
                        view.beats && !view.ended ? age(at - view.beat_age, at) : "-",
                        view.step != 0 ? std::to_string(view.step) : "-", whereabouts(view, at));
    const OperationView* const last = view.last_completed();
    if (view.waiting() != nullptr && last != nullptr && !view.ended) {
      text += fmt::format("  {:>5} {}{:>8}  {:<14} {:>7} {:>7}  last completed: {}\n", "", column(""), "", "", "", "",
                          last->text);
    }
  }
  return text;
}

std::string operations_text(const std::vector<RankView>& views, std::size_t most, Nanoseconds at) {
  std::string text;
  for (const RankView& view : views) {
    text += fmt::format("  rank {} (pid {}):{}\n", view.rank, view.pid, view.operations.empty() ? " none" : "");
    for (std::size_t i = 0; i < std::min(most, view.operations.size()); ++i) {
      const OperationView& one = view.operations[i];
      std::string how = one.failed               ? "failed"
                        : one.done && !one.timed ? "done"
                        : one.done               ? fmt::format("took {:.3f} s", seconds(one.completed - one.entered))
                        : one.waits              ? fmt::format("waits since {}", age(one.waits_from, at))
                                                 : "under way";
      text += fmt::format("    {:>8} ago  {:<15}  {}\n", age(one.entered, at), how, one.text);
    }
  }
  return text;
}

}  // namespace paceline
