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
#include <deque>
#include <exception>
#include <memory>
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
#include "paceline/tools/run_nodes.h"
#include "paceline/tools/run_output.h"
#include "paceline/tools/run_process_tree.h"
#include "paceline/tools/run_remote.h"
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
  Guard(const RunOptions& options, std::unique_ptr<JobNodes> nodes, pid_t front, const sigset_t& mask)
      : options_(options),
        nodes_(std::move(nodes)),
        store_(nodes_ ? nodes_->store() : &own_store_.emplace()),
        front_(watch_process(front)),
        // An orphan before front_ was opened: the number may be another process's by now.
        orphaned_(::getppid() != front),
        signals_(BlockedSignals::make_signalfd()),
        mask_(mask),
        output_(options.tag),
        input_open_(options.nodes && options.nodes->ends_with_input) {}

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

  bool meet_others();
  void hear_others();
  void wait_for_others();
  JobFacts facts();
  bool start_workers();
  void wait_for_events(bool workers_matter);
  void watch();
  void handle_signals();
  void interrupt(int signal, const std::string& how);
  void reap();
  void worker_ended(std::size_t index, int status);
  void record(WorkerEnd end);
  void note_early_exit();
  void leave();
  void announce(const Verdict& verdict);
  void advance_when_due();
  void signal_workers(int signal);
  bool any_alive() const;
  void stop_workers();
  bool only_silent_left() const;
  void end_everything();
  std::deque<std::string> last_errors(int rank) const;
  int conclude();
  Verdict judge();
  Verdict lost_output() const;

  const RunOptions& options_;
  std::unique_ptr<JobNodes> nodes_;  // null where this host is all of the job
  std::optional<StoreServer> own_store_;
  StoreServer* const store_;  // null on other nodes than 0
  const UniqueFd front_;
  bool orphaned_;
  const UniqueFd signals_;
  const sigset_t mask_;
  std::optional<Board> board_;
  std::optional<JobWatch> watch_;
  std::optional<JobWatch::Silent> silent_;  // the worker for whose silence the job ends
  std::vector<RankView> hung_;              // where ranks were when a signal ended their waiting
  JobOutput output_;
  UniqueFd port_;
  RemoteLaunchers remotes_;
  std::vector<Worker> workers_;  // by local rank
  std::vector<WorkerEnd> ends_;  // in the order of time; on node 0, all nodes'
  Nanoseconds began_ = now();
  const MemoryGroup memory_;
  std::optional<Deadline> next_look_;
  Phase phase_ = Phase::Running;
  std::optional<Deadline> next_phase_;
  std::string interrupted_how_;
  int interrupted_by_ = 0;   // the signal that ended the job
  bool impatient_ = false;   // a second signal came: also give up on the output
  int start_exit_code_ = 0;  // when a worker could not be started
  bool input_open_;          // the job ends when it does
  bool waits_for_others_ = false;
  std::optional<Verdict> trouble_;  // what other nodes say, and
  std::size_t trouble_after_ = 0;   // how many of ends_ came before
};

int Guard::run() {
  // A group of its own, or Ctrl-C would reach the workers from the terminal and once more from the front.
  ::setpgid(0, 0);
  if (meet_others() && start_workers()) {
    while (any_alive() && phase_ != Phase::Killing && !orphaned_) {
      wait_for_events(true);
      watch();
      advance_when_due();
    }
  }
  phase_ = Phase::Killing;  // from here on a signal only means not to wait: for the others, or for the reader
  if (remotes_.any_alive()) stop_workers();
  else end_everything();
  if (orphaned_) return kExitInternal;
  output_.drain_workers();
  wait_for_others();
  const int exit_code = conclude();
  const Deadline patience(kTermTime);
  while (remotes_.any_alive() && !orphaned_ && !impatient_ && !patience.passed()) wait_for_events(false);
  end_everything();
  output_.drain_launchers();
  // The reader may take its time; signals and the front's death still count.
  while (!output_.all_written() && !orphaned_ && !impatient_) wait_for_events(false);
  if (exit_code != 0 || output_.write_error() == 0) return exit_code;
  const Verdict lost = lost_output();
  output_.print("paceline: " + lost.text);
  return lost.exit_code;
}

// False if the job ends before it began.
bool Guard::meet_others() {
  if (!nodes_) return true;
  const auto meeting = [&] { return phase_ == Phase::Running && !orphaned_ && output_.write_error() == 0; };
  hear_others();
  remotes_.start(*options_.nodes, nodes_->rendezvous(), mask_, output_);
  while (!nodes_->placement() && meeting()) wait_for_events(true);
  began_ = now();
  return nodes_->placement().has_value() && meeting();
}

void Guard::hear_others() {
  nodes_->advance();
  for (const std::string& line : nodes_->take_lines()) output_.print(line);
  for (WorkerEnd& end : nodes_->take_ends()) record(std::move(end));
  const std::optional<Verdict>& verdict = nodes_->verdict();
  if (!verdict || trouble_) return;
  trouble_ = *verdict;
  trouble_after_ = ends_.size();
  if (store_ != nullptr && verdict->rank >= 0) {
    store_->fail(verdict->rank, label_of(verdict->fault), verdict->text);
  }
  if (board_ && verdict->signal == 0) {
    board_->fail(Error(verdict->fault, verdict->text, Error::kNoRank, verdict->rank));
  }
  if (phase_ == Phase::Running && verdict->signal != 0) return interrupt(verdict->signal, verdict->text);
  if (store_ != nullptr) announce(*verdict);
  if (phase_ == Phase::Running) leave();
}

void Guard::wait_for_others() {
  if (!nodes_) return;
  if (output_.write_error() != 0) announce(lost_output());
  LastErrors errors;
  for (const WorkerEnd& end : ends_) {
    if (end.failed()) errors[end.rank] = last_errors(end.rank);
  }
  nodes_->finished(errors);
  waits_for_others_ = true;
  while (!nodes_->all_finished() && !orphaned_ && !impatient_) wait_for_events(false);
  waits_for_others_ = false;
}

JobFacts Guard::facts() {
  JobFacts facts;
  facts.terminal = output_.terminal();
  if (!nodes_) {
    facts.id = random_id();
    facts.store_address = store_->address();
    facts.world_size = options_.workers;
    port_ = reserve_port(SocketAddress(facts.master_address, 0), facts.master_port);
    return facts;
  }
  const Placement& place = *nodes_->placement();
  facts.id = place.job;
  facts.store_address = place.store_address;
  facts.node = place.node;
  facts.nodes = place.nodes;
  facts.first_rank = place.first_rank;
  facts.world_size = place.world_size;
  facts.master_address = place.master_address;
  facts.master_port = place.master_port;
  facts.bind = place.bind;
  facts.secret_file = options_.nodes->secret_file;
  if (place.secret) facts.secret = place.secret->hex();
  return facts;
}

bool Guard::start_workers() {
  JobFacts job = facts();
  board_.emplace(BoardFacts{.slots = options_.workers,
                            .world_size = job.world_size,
                            .first_rank = job.first_rank,
                            .front = ::getppid(),
                            .job = job.id,
                            .program = fmt::format("{}", fmt::join(options_.program, " "))});
  watch_.emplace(*board_, options_.watch);
  job.board_address = board_->address();
  WorkerProgram worker{.executable = options_.executable, .arguments = options_.program, .environment = {}};
  worker.signal_mask = mask_;
  worker.open_files = open_files_for(job.world_size);
  worker.inherited = board_->fd();
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) {
    worker.environment = worker_environment(options_, job, local_rank);
    StartedWorker started = start_worker(worker);
    workers_.push_back({.pid = started.pid});
    board_->started(local_rank, started.pid);
    output_.add_worker(std::move(started.out), std::move(started.err), job.first_rank);
    if (started.start_error != 0) {
      start_exit_code_ = started.start_error == ENOENT ? kExitNotFound : kExitNotExecutable;
      const char* hint = started.start_error == ENOEXEC  ? "; a script needs a first line such as #!/bin/sh"
                         : started.start_error == ENOENT ? "; if it is a script, its interpreter is missing"
                                                         : "";
      const std::string problem = fmt::format("cannot start {}: {}{}", options_.executable,
                                              std::generic_category().message(started.start_error), hint);
      output_.print("paceline run: " + problem);
      if (nodes_) announce({.text = nodes_->placement()->who + " " + problem, .exit_code = start_exit_code_});
      return false;
    }
  }
  return true;
}

void Guard::wait_for_events(bool workers_matter) {
  std::vector<pollfd> polled{
      {signals_.get(), POLLIN, 0},
      {front_.get(), POLLIN, 0},
      {phase_ == Phase::Running && store_ != nullptr ? store_->left_too_early_fd() : -1, POLLIN, 0},
      {nodes_ ? nodes_->fd() : -1, POLLIN, 0},
      {input_open_ ? STDIN_FILENO : -1, POLLIN, 0}};
  output_.add_polled(polled);
  const bool watches = workers_matter && phase_ == Phase::Running && watch_;
  Nanoseconds nap = watches ? JobWatch::kPeriod : std::chrono::hours(1);
  if (nodes_) nap = std::min(nap, nodes_->due().value_or(nap));
  if (workers_matter && next_phase_) nap = std::min(nap, next_phase_->left());
  // Its end is a child's, but the time that it gets is not polled for.
  if (!workers_matter && remotes_.any_alive() && !waits_for_others_)
    nap = std::min<Nanoseconds>(nap, milliseconds(100));
  const auto timeout_ms = std::max<std::int64_t>(std::chrono::ceil<milliseconds>(nap).count(), 0);
  if (::poll(polled.data(), polled.size(), static_cast<int>(timeout_ms)) < 0) {
    if (errno == EINTR) return;
    throw system_error("cannot wait for the workers", errno);
  }
  if (polled[1].revents != 0) orphaned_ = true;
  output_.handle_polled(polled);
  if (polled[0].revents != 0) handle_signals();
  if (polled[2].revents != 0 && phase_ == Phase::Running) {
    const auto early = store_->left_too_early();
    if (early) announce({.text = early->message, .exit_code = 1});
    leave();
  }
  if (nodes_) hear_others();
  if (polled[4].revents != 0) {
    char bytes[256];
    input_open_ = ::read(STDIN_FILENO, bytes, sizeof bytes) > 0;
    if (!input_open_) interrupt(SIGTERM, "the launcher that started this one has ended");
  }
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
  const int rank = silent_->slot + (nodes_ ? nodes_->placement()->first_rank : 0);
  if (store_ != nullptr) store_->fail(rank, cause.label(), cause.message());
  board_->fail(cause);
  announce({.text = cause.message(), .exit_code = 128 + SIGKILL, .rank = rank, .fault = cause.fault()});
  leave();
}

void Guard::handle_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;
    const std::string name = signal == SIGINT ? "Ctrl-C" : signal == SIGHUP ? "SIGHUP" : "SIGTERM";
    interrupt(signal, fmt::format("ended by signal {} ({})", signal, name));
  }
  reap();
}

void Guard::interrupt(int signal, const std::string& how) {
  if (phase_ != Phase::Running && (!waits_for_others_ || interrupted_by_ != 0)) {
    // Asked again, or while it already ends after a failure: the user does not want to wait.
    impatient_ = true;
    phase_ = Phase::Killing;
    return;
  }
  interrupted_by_ = signal;
  interrupted_how_ = how;
  if (watch_ && watch_->waits_in_vain(kHang)) hung_ = views_of(*board_, now());
  if (nodes_ && !trouble_ && nodes_->placement()) interrupted_how_ += " on " + nodes_->placement()->who;
  if (store_ != nullptr || !trouble_) announce({.text = interrupted_how_, .exit_code = 128 + signal, .signal = signal});
  signal_workers(signal);
  if (phase_ == Phase::Running) leave();
}

void Guard::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto worker = std::find_if(workers_.begin(), workers_.end(),
                                     [&](const Worker& other) { return other.alive && other.pid == pid; });
    if (worker != workers_.end()) worker_ended(static_cast<std::size_t>(worker - workers_.begin()), status);
    remotes_.ended(pid, status);
  }
  const auto failure = remotes_.failure();
  if (!failure || trouble_ || nodes_->placement() || phase_ != Phase::Running) return;
  trouble_ = failure;
  announce(*failure);
  leave();
}

void Guard::worker_ended(std::size_t index, int status) {
  Worker& worker = workers_[index];
  worker.alive = false;
  const int slot = static_cast<int>(index);
  WorkerEnd end{.rank = slot, .status = status, .after = now() - began_, .stopped = worker.stopped};
  board_->ended(slot);
  const RankView view = view_of(*board_, slot, now());
  end.host = board_->header().host;
  end.pid = view.pid;
  if (!view.operations.empty()) end.where = last_known(view);
  if (silent_ && silent_->slot == slot) end.silence = silent_->cause;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !worker.stopped) end.out_of_memory = memory_.evidence();
  if (nodes_) {
    end.rank += nodes_->placement()->first_rank;
    end.node = nodes_->placement()->who;
    nodes_->worker_ended(end);
  }
  record(std::move(end));
}

void Guard::record(WorkerEnd end) {
  if (store_ != nullptr && end.status == 0) store_->left(end.rank);
  if (end.status != 0) {
    if (store_ != nullptr) {
      const auto reports = store_->failures();
      if (const auto own = reports.find(end.rank); own != reports.end()) end.report = own->second;
      store_->fail(end.rank, label_of(fault_of(end)),
                   fmt::format("rank {} {} after {:.1f} s", end.rank, describe_status(end.status), seconds(end.after)));
    }
    const Error cause = failure_for_others(end);
    if (board_) board_->fail(cause);
    if (store_ != nullptr) {
      announce({.text = cause.message(), .exit_code = exit_code_of(end), .rank = end.rank, .fault = cause.fault()});
    }
    if (phase_ == Phase::Running) leave();
  }
  ends_.push_back(std::move(end));
}

void Guard::note_early_exit() {
  const auto early = store_ != nullptr ? store_->left_too_early() : std::nullopt;
  for (WorkerEnd& end : ends_) end.too_early |= early && end.rank == early->rank;
}

void Guard::leave() {
  phase_ = Phase::Leaving;
  next_phase_ = Deadline(options_.grace);
}

void Guard::announce(const Verdict& verdict) {
  if (nodes_) nodes_->announce(verdict);
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

// Only the workers: other children carry other hosts' output.
void Guard::stop_workers() {
  for (Worker& worker : workers_) worker.stopped |= worker.alive;
  signal_workers(SIGKILL);
  while (any_alive() && !orphaned_) wait_for_events(false);
}

void Guard::end_everything() {
  for (Worker& worker : workers_) worker.stopped |= worker.alive;
  const auto survivors = end_descendants([this](pid_t pid, int status) {
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
      if (workers_[rank].alive && workers_[rank].pid == pid) worker_ended(rank, status);
    }
    remotes_.ended(pid, status);
  });
  for (const pid_t pid : survivors) output_.print(fmt::format("paceline: process {} could not be ended", pid));
}

std::deque<std::string> Guard::last_errors(int rank) const {
  const int first = nodes_ && nodes_->placement() ? nodes_->placement()->first_rank : 0;
  if (rank >= first && rank - first < static_cast<int>(workers_.size())) return output_.last_errors(rank - first);
  const auto found = nodes_->last_errors().find(rank);
  return found == nodes_->last_errors().end() ? std::deque<std::string>() : found->second;
}

// Prints how the job has ended.
int Guard::conclude() {
  if (store_ == nullptr) {
    if (const auto outcome = nodes_->outcome()) {
      if (outcome->exit_code != 0) output_.print("paceline: " + outcome->text);
      return outcome->exit_code;
    }
  }
  const Verdict verdict = judge();
  if (!verdict.text.empty()) output_.print(verdict.text);
  if (nodes_) {
    // The others get the first line, without whose it is.
    std::string text = verdict.text.substr(0, verdict.text.find('\n'));
    if (text.starts_with("paceline: ")) text = text.substr(10);
    nodes_->conclude({.text = text, .exit_code = verdict.exit_code, .signal = verdict.signal});
  }
  return verdict.exit_code;
}

Verdict Guard::judge() {
  if (start_exit_code_ != 0) return {.text = "", .exit_code = start_exit_code_};
  if (output_.write_error() != 0 && interrupted_by_ == 0) {
    const Verdict lost = lost_output();
    return {.text = "paceline: " + lost.text, .exit_code = lost.exit_code};
  }
  if (interrupted_by_ != 0) {
    std::string text = "paceline: " + interrupted_how_;
    if (!hung_.empty()) text += "\npaceline: the last operations of each rank\n" + operations_text(hung_, 4, now());
    return {.text = text, .exit_code = 128 + interrupted_by_, .signal = interrupted_by_};
  }
  note_early_exit();
  const std::optional<StoreFailure> told = store_ != nullptr ? store_->first_failure() : std::nullopt;
  const WorkerEnd* first = first_cause(ends_, told ? std::optional(told->rank) : std::nullopt);
  const auto before_trouble = [&] {
    const bool earlier = static_cast<std::size_t>(first - ends_.data()) < trouble_after_;
    return first->silence || (earlier && !only_saw_another_fail(*first));
  };
  if (trouble_ && (first == nullptr || !before_trouble())) {
    return {.text = trouble_text(ends_, trouble_->text), .exit_code = trouble_->exit_code};
  }
  if (first == nullptr) return {};
  std::string text = failure_text(ends_, *first, last_errors(first->rank));
  if (first->report && first->report->is(ErrorCode::Timeout)) {
    text += "  the last operations of each rank:\n" + operations_text(views_of(*board_, now()), 4, now());
  }
  return {.text = text, .exit_code = exit_code_of(*first)};
}

Verdict Guard::lost_output() const {
  const int error = output_.write_error();
  return {.text = fmt::format("ended the job, since its output cannot be written: {}",
                              std::generic_category().message(error)),
          .exit_code = error == EPIPE ? 128 + SIGPIPE : kExitOutput};
}

}  // namespace

int run_guard(const RunOptions& options, pid_t front, const sigset_t& mask) {
  try {
    if (::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) throw system_error("cannot become a subreaper", errno);
    std::unique_ptr<JobNodes> nodes;
    try {
      if (options.nodes) nodes = options.nodes->rank == 0 ? make_node_zero(options) : make_other_node(options);
    } catch (const Error& error) {
      fmt::print(stderr, "paceline run: {}\n", error.message());
      return error.code() == ErrorCode::InvalidArgument ? kExitUsage : kExitUnavailable;
    }
    const int exit_code = Guard(options, std::move(nodes), front, mask).run();
    if (options.nodes && options.nodes->made_secret) ::unlink(options.nodes->secret_file.c_str());
    return exit_code;
  } catch (const std::exception& error) {
    // Whatever was started is ended by the front, which inherits it.
    fmt::print(stderr, "paceline: {}\n", error.what());
    return kExitInternal;
  }
}

}  // namespace paceline::tools
