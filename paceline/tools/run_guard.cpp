#include "paceline/tools/run_guard.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/base/error.h"
#include "paceline/base/unique_fd.h"
#include "paceline/comm/board.h"
#include "paceline/comm/store_server.h"
#include "paceline/tools/board_view.h"
#include "paceline/tools/commands.h"
#include "paceline/tools/run_environment.h"
#include "paceline/tools/run_memory.h"
#include "paceline/tools/run_output.h"
#include "paceline/tools/run_process_tree.h"
#include "paceline/tools/run_report.h"
#include "paceline/tools/run_resources.h"
#include "paceline/tools/run_signals.h"
#include "paceline/tools/run_verdict.h"
#include "paceline/tools/run_watch.h"
#include "paceline/tools/run_worker.h"

namespace paceline::tools {
namespace {

using std::chrono::milliseconds;

// Between SIGTERM and SIGKILL.
constexpr std::chrono::seconds kTermTime{5};
// A signal that ends a wait of this length is taken for the end of a hang.
constexpr std::chrono::seconds kHang{5};

class Guard {
 public:
  Guard(const RunOptions& options, pid_t front, const sigset_t& mask)
      : options_(options),
        front_(watch_process(front)),
        // An orphan before front_ was opened: the number may be another process's by now.
        orphaned_(::getppid() != front),
        signals_(BlockedSignals::make_signalfd()),
        mask_(mask),
        output_(options.tag) {}

  int run();

 private:
  /// How far the end of the job has come.
  enum class Phase {
    Running,
    Leaving,      // the workers were told (by the store, by Ctrl-C) and get the grace to end
    Terminating,  // they got SIGTERM
    Killing,
  };
  struct Worker {
    pid_t pid;
    bool alive = true;
    bool stopped = false;  // we sent it SIGTERM or SIGKILL
  };

  bool start_workers();
  void wait_for_events(bool workers_matter);
  void watch();
  void handle_signals();
  void reap();
  void worker_ended(int rank, int status);
  void note_early_exit();
  void leave();
  void advance_when_due();
  void signal_workers(int signal);
  bool any_alive() const;
  bool only_silent_left() const;
  void end_everything();
  int conclude();
  int lost_output();

  const RunOptions& options_;
  const UniqueFd front_;
  bool orphaned_;
  const UniqueFd signals_;
  const sigset_t mask_;
  StoreServer store_;
  std::optional<Board> board_;
  std::optional<JobWatch> watch_;
  std::optional<JobWatch::Silent> silent_;  // the worker for whose silence the job ends
  std::vector<RankView> hung_;              // where ranks were when a signal ended their waiting
  JobOutput output_;
  UniqueFd port_;
  std::vector<Worker> workers_;  // by rank
  std::vector<WorkerEnd> ends_;  // in the order of time
  Nanoseconds began_ = now();
  const MemoryGroup memory_;
  std::optional<Deadline> next_look_;
  Phase phase_ = Phase::Running;
  std::optional<Deadline> next_phase_;
  int interrupted_by_ = 0;   // the signal that ended the job
  bool impatient_ = false;   // a second signal came: also give up on the output
  int start_exit_code_ = 0;  // when a worker could not be started
};

int Guard::run() {
  // A group of its own, or Ctrl-C would reach the workers from the terminal and once more from the front.
  ::setpgid(0, 0);
  if (start_workers()) {
    while (any_alive() && phase_ != Phase::Killing && !orphaned_) {
      wait_for_events(true);
      watch();
      advance_when_due();
    }
  }
  phase_ = Phase::Killing;  // from here on a signal only means not to wait for the reader
  end_everything();
  if (orphaned_) return kExitInternal;
  output_.drain();
  const int exit_code = conclude();
  // The reader may take its time; signals and the front's death still count.
  while (!output_.all_written() && !orphaned_ && !impatient_) wait_for_events(false);
  return exit_code == 0 && output_.write_error() != 0 ? lost_output() : exit_code;
}

bool Guard::start_workers() {
  JobFacts facts{.id = random_id(), .store_address = store_.address(), .terminal = output_.terminal()};
  board_.emplace(BoardFacts{.slots = options_.workers,
                            .world_size = options_.workers,
                            .front = ::getppid(),
                            .job = facts.id,
                            .program = fmt::format("{}", fmt::join(options_.program, " "))});
  watch_.emplace(*board_, options_.watch);
  facts.board_address = board_->address();
  port_ = reserve_port(facts.master_port);
  WorkerProgram program{.executable = options_.executable, .arguments = options_.program, .environment = {}};
  program.signal_mask = mask_;
  program.open_files = open_files_for(options_.workers);
  program.inherited = board_->fd();
  for (int rank = 0; rank < options_.workers; ++rank) {
    program.environment = worker_environment(options_, facts, rank);
    StartedWorker started = start_worker(program);
    workers_.push_back({.pid = started.pid});
    board_->started(rank, started.pid);
    output_.add_worker(std::move(started.out), std::move(started.err));
    if (started.start_error != 0) {
      start_exit_code_ = started.start_error == ENOENT ? kExitNotFound : kExitNotExecutable;
      const char* hint = started.start_error == ENOEXEC  ? "; a script needs a first line such as #!/bin/sh"
                         : started.start_error == ENOENT ? "; if it is a script, its interpreter is missing"
                                                         : "";
      output_.print(fmt::format("paceline run: cannot start {}: {}{}", options_.executable,
                                std::generic_category().message(started.start_error), hint));
      return false;
    }
  }
  return true;
}

void Guard::wait_for_events(bool workers_matter) {
  std::vector<pollfd> polled{{signals_.get(), POLLIN, 0},
                             {front_.get(), POLLIN, 0},
                             {phase_ == Phase::Running ? store_.left_too_early_fd() : -1, POLLIN, 0}};
  output_.add_polled(polled);
  const bool watches = workers_matter && phase_ == Phase::Running;
  int timeout_ms = watches ? static_cast<int>(std::chrono::ceil<milliseconds>(JobWatch::kPeriod).count()) : -1;
  if (workers_matter && next_phase_) {
    const auto left = std::chrono::ceil<milliseconds>(next_phase_->left()).count();
    timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
  }
  if (::poll(polled.data(), polled.size(), timeout_ms) < 0) {
    if (errno == EINTR) return;
    throw system_error("cannot wait for the workers", errno);
  }
  if (polled[1].revents != 0) orphaned_ = true;
  output_.handle_polled(polled);
  if (polled[0].revents != 0) handle_signals();
  if (polled[2].revents != 0 && phase_ == Phase::Running) leave();
  if (workers_matter && output_.write_error() != 0) phase_ = Phase::Killing;
}

void Guard::watch() {
  if (phase_ != Phase::Running) {
    // It takes no SIGTERM, and nobody waits for it any more.
    if (phase_ != Phase::Killing && silent_ && only_silent_left()) phase_ = Phase::Killing;
    return;
  }
  if (next_look_ && !next_look_->passed()) return;
  next_look_.emplace(JobWatch::kPeriod);
  JobWatch::News news = watch_->look(now());
  if (!news.stuck.empty()) output_.print(news.stuck);
  if (!news.silent) return;
  silent_ = std::move(news.silent);
  const Error& cause = silent_->cause;
  store_.fail(silent_->slot, cause.label(), cause.message());
  board_->fail(cause);
  leave();
}

void Guard::handle_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;
    if (phase_ == Phase::Running) {
      interrupted_by_ = signal;
      if (watch_ && watch_->waits_in_vain(kHang)) hung_ = views_of(*board_, now());
      signal_workers(signal);
      leave();
    } else {
      // Asked again, or while it already ends after a failure: the user does not want to wait.
      impatient_ = true;
      phase_ = Phase::Killing;
    }
  }
  reap();
}

void Guard::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto worker = std::find_if(workers_.begin(), workers_.end(),
                                     [&](const Worker& other) { return other.alive && other.pid == pid; });
    if (worker != workers_.end()) worker_ended(static_cast<int>(worker - workers_.begin()), status);
  }
}

void Guard::worker_ended(int rank, int status) {
  Worker& worker = workers_[static_cast<std::size_t>(rank)];
  worker.alive = false;
  WorkerEnd end{.rank = rank, .status = status, .after = now() - began_, .stopped = worker.stopped};
  board_->ended(rank);
  const RankView view = view_of(*board_, rank, now());
  end.host = board_->header().host;
  end.pid = view.pid;
  if (!view.operations.empty()) end.where = last_known(view);
  if (silent_ && silent_->slot == rank) end.silence = silent_->cause;
  if (status == 0) {
    store_.left(rank);
  } else {
    const auto reports = store_.failures();
    if (const auto own = reports.find(rank); own != reports.end()) end.report = own->second;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !worker.stopped) end.out_of_memory = memory_.evidence();
    store_.fail(rank, label_of(fault_of(end)),
                fmt::format("rank {} {} after {:.1f} s", rank, describe_status(status), seconds(end.after)));
    board_->fail(failure_for_others(end));
    if (phase_ == Phase::Running) leave();
  }
  ends_.push_back(std::move(end));
}

void Guard::note_early_exit() {
  const std::optional<StoreFailure> early = store_.left_too_early();
  for (WorkerEnd& end : ends_) end.too_early |= early && end.rank == early->rank;
}

void Guard::leave() {
  phase_ = Phase::Leaving;
  next_phase_ = Deadline(options_.grace);
}

void Guard::advance_when_due() {
  if (!next_phase_ || !next_phase_->passed() || phase_ == Phase::Killing) return;
  if (phase_ == Phase::Terminating) {
    phase_ = Phase::Killing;
    return;
  }
  phase_ = Phase::Terminating;
  next_phase_ = Deadline(kTermTime);
  for (Worker& worker : workers_) worker.stopped = worker.alive;
  signal_workers(SIGTERM);
}

void Guard::signal_workers(int signal) {
  // While a worker is not reaped its pid, and so its group, is its own.
  for (const Worker& worker : workers_) {
    if (worker.alive) ::kill(-worker.pid, signal);
  }
}

bool Guard::only_silent_left() const {
  for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
    if (workers_[rank].alive && static_cast<int>(rank) != silent_->slot) return false;
  }
  return true;
}

bool Guard::any_alive() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.alive; });
}

void Guard::end_everything() {
  for (Worker& worker : workers_) worker.stopped |= worker.alive;
  const auto survivors = end_descendants([this](pid_t pid, int status) {
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
      if (workers_[rank].alive && workers_[rank].pid == pid) worker_ended(static_cast<int>(rank), status);
    }
  });
  for (const pid_t pid : survivors) output_.print(fmt::format("paceline: process {} could not be ended", pid));
}

int Guard::conclude() {
  if (start_exit_code_ != 0) return start_exit_code_;
  if (output_.write_error() != 0 && interrupted_by_ == 0) return lost_output();
  if (interrupted_by_ != 0) {
    output_.print(fmt::format("paceline: ended by signal {} ({})", interrupted_by_,
                              interrupted_by_ == SIGINT   ? "Ctrl-C"
                              : interrupted_by_ == SIGHUP ? "SIGHUP"
                                                          : "SIGTERM"));
    if (!hung_.empty())
      output_.print("paceline: the last operations of each rank\n" + operations_text(hung_, 4, now()));
    return 128 + interrupted_by_;
  }
  note_early_exit();
  const std::optional<StoreFailure> told = store_.first_failure();
  const WorkerEnd* first = first_cause(ends_, told ? std::optional(told->rank) : std::nullopt);
  if (first == nullptr) return 0;
  output_.print(failure_text(ends_, *first, output_.last_errors(first->rank)));
  const bool waited = first->report && first->report->is(ErrorCode::Timeout);
  if (waited)
    output_.print("  the last operations of each rank:\n" + operations_text(views_of(*board_, now()), 4, now()));
  return exit_code_of(*first);
}

int Guard::lost_output() {
  const int error = output_.write_error();
  output_.print(fmt::format("paceline: ended the job, since its output cannot be written: {}",
                            std::generic_category().message(error)));
  return error == EPIPE ? 128 + SIGPIPE : kExitOutput;
}

}  // namespace

int run_guard(const RunOptions& options, pid_t front, const sigset_t& mask) {
  try {
    if (::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) throw system_error("cannot become a subreaper", errno);
    return Guard(options, front, mask).run();
  } catch (const std::exception& error) {
    // Whatever was started is ended by the front, which inherits it.
    fmt::print(stderr, "paceline: {}\n", error.what());
    return kExitInternal;
  }
}

}  // namespace paceline::tools
