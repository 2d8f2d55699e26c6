#include "paceline/launch/failure/job_outcome.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>

namespace paceline::launch {
namespace {

// As the C++ library prints it.
bool is_of_terminate(const std::string& line) { return line.starts_with("terminate called "); }

}  // namespace

Fault fault_of(const WorkerEnd& end) {
  if (end.silence) return end.silence->fault();
  if (end.too_early) return Fault::NeverJoined;
  if (end.left) return Fault::PeerLeft;
  if (!end.out_of_memory.empty()) return Fault::OutOfMemory;
  if (end.report && end.report->cause == Cause::First) return end.report->fault();
  return WIFSIGNALED(end.status) || end.unseen ? Fault::PeerDied : Fault::PeerExited;
}

Error failure_for_others(const WorkerEnd& end) {
  if (end.silence) return *end.silence;
  const bool said_why = end.report && end.report->cause == Cause::First && end.out_of_memory.empty();
  if (said_why) return Error(end.report->fault(), end.report->message, Error::kNoRank, end.rank);
  std::string text = fmt::format("rank {} (host {}, pid {}) {}", end.rank, end.host, end.pid, describe_end(end));
  if (!end.out_of_memory.empty()) text += ": " + end.out_of_memory;
  if (!end.last_known.empty()) text += fmt::format(", {}", end.last_known);
  return Error(fault_of(end), text, Error::kNoRank, end.rank);
}

bool is_uncaught_error(const WorkerEnd& end) {
  return end.report && end.report->cause == Cause::First && WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGABRT;
}

std::string hint_for(const WorkerEnd& end, const std::deque<std::string>& last_errors) {
  if (end.silence) {
    if (end.silence->fault() != Fault::PeerSilent) return "";
    return "to stop workers on purpose, for a debugger, start the job with --silence 0";
  }
  if (!end.out_of_memory.empty()) return "a smaller batch needs less memory; or raise the limit";
  if (!WIFSIGNALED(end.status) || is_uncaught_error(end)) return "";
  if (WTERMSIG(end.status) == SIGABRT && std::any_of(last_errors.begin(), last_errors.end(), is_of_terminate)) {
    return "nothing caught an exception, whose text stands below: main() should catch it, and let the other ranks know "
           "with Comm::abort()";
  }
  switch (WTERMSIG(end.status)) {
    case SIGSEGV:
    case SIGBUS:
    case SIGABRT:
    case SIGFPE:
    case SIGILL:
      return "a defect in the program or in a library: `ulimit -c unlimited` leaves a core file to look at with gdb";
    case SIGKILL: return "something sent SIGKILL; the kernel's log (dmesg) may say what";
    case SIGUSR1:
    case SIGUSR2:
      return "a signal that came to the launcher goes to all workers, and ends a program that does not handle it";
    case SIGXCPU:
    case SIGXFSZ: return "a resource limit (ulimit -a) was passed";
    default: return "";
  }
}

}  // namespace paceline::launch
