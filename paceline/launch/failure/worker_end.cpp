#include "paceline/launch/failure/worker_end.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "paceline/base/exit_codes.h"
#include "paceline/launch/failure/job_outcome.h"
#include "paceline/launch/rank_list.h"

namespace paceline::launch {
namespace {

std::string describe(const WorkerEnd& end);
std::string secondary_line(const std::vector<WorkerEnd>& ends, const WorkerEnd* first);

}  // namespace

std::string describe_status(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("exited with code {}", WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  const char* name = ::sigabbrev_np(signal);
  const std::string text = name != nullptr ? fmt::format(" (SIG{})", name) : "";
  return fmt::format("killed by signal {}{}{}", signal, text, WCOREDUMP(status) ? ", core dumped" : "");
}

std::string describe_end(const WorkerEnd& end) {
  if (end.unseen) {
    return "died in its communicator, while what started it exited with code 0 (a script that ends in a pipe? bash's "
           "`set -o pipefail` lets it fail)";
  }
  if (end.left) {
    return "exited with code 0 while it was in a communicator, where others waited for it: do all ranks make the same "
           "calls, and end their communicators by return from main()?";
  }
  if (end.by_shell) {
    return fmt::format("{}, as exit code {} of what started it says", describe_status(end.status),
                       exit_code_of(end.status));
  }
  if (end.hidden_code != 0) {
    return fmt::format("{}, though what started it exited with code 0", describe_status(end.status));
  }
  return describe_status(end.status);
}

int exit_code_of(const WorkerEnd& cause) {
  if (cause.too_early || cause.left) return 1;
  if (cause.unseen) return cause.out_of_memory.empty() ? 1 : 128 + SIGKILL;
  if (cause.report && cause.report->is(ErrorCode::Mismatch)) return kExitMismatch;
  return exit_code_of(cause.status);
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

const WorkerEnd* first_cause(const std::vector<WorkerEnd>& ends, std::optional<int> first_to_report) {
  const auto first = [&](auto&& counts) -> const WorkerEnd* {
    const auto found = std::find_if(ends.begin(), ends.end(), counts);
    return found == ends.end() ? nullptr : &*found;
  };
  const WorkerEnd* cause = first([](const WorkerEnd& end) { return end.silence.has_value(); });
  if (cause != nullptr) return cause;
  cause = first([](const WorkerEnd& end) { return end.failed() && !only_saw_another_fail(end); });
  const bool any = first([](const WorkerEnd& end) { return end.failed() && !end.stopped; }) != nullptr;
  if (cause == nullptr && any) cause = first([](const WorkerEnd& end) { return end.left; });
  if (cause == nullptr) {
    cause = first([&](const WorkerEnd& end) { return end.failed() && !end.stopped && end.rank == first_to_report; });
  }
  if (cause == nullptr) cause = first([](const WorkerEnd& end) { return end.failed() && !end.stopped; });
  if (cause == nullptr) cause = first([](const WorkerEnd& end) { return end.failed(); });
  return cause;
}

bool only_saw_another_fail(const WorkerEnd& end) {
  return end.stopped || (end.report && end.report->cause == Cause::Consequence);
}

std::string killed_ranks(const std::vector<WorkerEnd>& ends) {
  std::vector<int> ranks;
  for (const WorkerEnd& end : ends) {
    if (end.stopped && WIFSIGNALED(end.status)) ranks.push_back(end.rank);
  }
  return ranks.empty() ? "" : join_ranks(ranks);
}

std::string trouble_text(const std::vector<WorkerEnd>& ends, const std::string& trouble, Fault fault) {
  return fmt::format("paceline: {}\n  [{}]\n{}", trouble, label_of(fault), secondary_line(ends, nullptr));
}

std::string failure_text(const std::vector<WorkerEnd>& ends, const WorkerEnd& first,
                         const std::deque<std::string>& last_errors) {
  std::string text = fmt::format("paceline: rank {}{} failed first, after {:.1f} s: {}\n", first.rank,
                                 first.node.empty() ? "" : " on " + first.node, seconds(first.after), describe(first));
  text += fmt::format("  [{}] host {}, pid {}{}{}\n", label_of(fault_of(first)), first.host, first.pid,
                      first.last_known.empty() ? "" : ", ", first.last_known);
  if (const std::string hint = hint_for(first, last_errors); !hint.empty()) text += fmt::format("  hint: {}\n", hint);
  if (first.report && first.report->rank == first.rank && !is_uncaught_error(first)) {
    text += fmt::format("  it reported [{}] {}\n", first.report->code, first.report->message);
  }
  if (!last_errors.empty()) {
    text += "  the end of its stderr:\n";
    for (const std::string& line : last_errors) text += fmt::format("    {}\n", line);
  }
  return text + secondary_line(ends, &first);
}

namespace {

std::string describe(const WorkerEnd& end) {
  if (end.too_early) return "exited with code 0 before it joined the job, and the others waited for it";
  if (end.silence) return end.silence->message();
  if (!end.out_of_memory.empty()) return fmt::format("{}: {}", describe_end(end), end.out_of_memory);
  if (is_uncaught_error(end)) {
    return fmt::format("{} (nothing caught the error: {})", end.report->message, describe_end(end));
  }
  return describe_end(end);
}

std::string secondary_line(const std::vector<WorkerEnd>& ends, const WorkerEnd* first) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;  // in the order of time
  for (const WorkerEnd& end : ends) {
    if (&end == first || !end.failed()) continue;
    std::string how = end.stopped ? "stopped by the launcher" : describe(end);
    if (!end.stopped && end.report) how += fmt::format(" after {}", end.report->code);
    const auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& other) { return other.first == how; });
    if (group == groups.end()) {
      groups.push_back({how, {end.rank}});
    } else {
      group->second.push_back(end.rank);
    }
  }
  if (groups.empty()) return "";
  std::string text = "  then ";
  for (const auto& [how, ranks] : groups) {
    if (text.size() > 7) text += "; ";
    text += fmt::format("{} {}", join_ranks(ranks), how);
  }
  return text + "\n";
}

}  // namespace
}  // namespace paceline::launch
