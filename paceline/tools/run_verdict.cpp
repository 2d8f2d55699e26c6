#include "paceline/tools/run_verdict.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

namespace paceline::tools {

Fault fault_of(const WorkerEnd& end) {
  if (end.silence) return end.silence->fault();
  if (end.too_early) return Fault::NeverJoined;
  if (!end.out_of_memory.empty()) return Fault::OutOfMemory;
  if (end.report && !end.report->secondary()) return end.report->fault();
  return WIFSIGNALED(end.status) ? Fault::PeerDied : Fault::PeerExited;
}

Error failure_for_others(const WorkerEnd& end) {
  if (end.silence) return *end.silence;
  // That a rank gave up is a consequence where another one did, and the cause where it says so of itself.
  const auto gave_up = [&] { return end.report->message.starts_with(fmt::format("rank {} gave up", end.rank)); };
  const bool said_why = end.report && (!end.report->secondary() || gave_up()) && end.out_of_memory.empty();
  if (said_why) return Error(end.report->fault(), end.report->message, Error::kNoRank, end.rank);
  std::string text =
      fmt::format("rank {} (host {}, pid {}) {}", end.rank, end.host, end.pid, describe_status(end.status));
  if (!end.out_of_memory.empty()) text += ": " + end.out_of_memory;
  if (!end.last_known.empty()) text += fmt::format(", {}", end.last_known);
  return Error(fault_of(end), text, Error::kNoRank, end.rank);
}

std::string hint_for(const WorkerEnd& end) {
  if (end.silence) {
    if (end.silence->fault() != Fault::PeerSilent) return "";
    return "to stop workers on purpose, for a debugger, start the job with --silence 0";
  }
  if (!end.out_of_memory.empty()) return "a smaller batch needs less memory; or raise the limit";
  if (!WIFSIGNALED(end.status)) return "";
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

}  // namespace paceline::tools
