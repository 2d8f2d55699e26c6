// The beginning of a job, and waiting for what happens to it. How it ends is in job_end.cpp.
#include "paceline/launch/job.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <utility>

#include "paceline/base/error.h"
#include "paceline/base/exit_codes.h"
#include "paceline/base/process_tree.h"
#include "paceline/base/random_bytes.h"
#include "paceline/launch/nodes/messages.h"

namespace paceline::launch {
namespace {

using std::chrono::milliseconds;

// For launchers of other hosts, once theirs is over.
constexpr std::chrono::seconds kToDisconnect{5};

}  // namespace

int Supervisor::run() {
  // A group of its own, or Ctrl-C would reach the workers from the terminal and once more from the launcher.
  ::setpgid(0, 0);
  if (meet_others() && start_workers()) {
    while (workers_left() && phase_ != Phase::Killing && !orphaned_) {
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
  const Deadline patience(kToDisconnect);
  while (remotes_.any_alive() && !orphaned_ && !impatient_ && !patience.passed()) wait_for_events(false);
  end_everything();
  output_.drain_launchers();
  output_.flush();
  // The reader may take its time; signals and the launcher's death still count.
  while (!output_.all_written() && !orphaned_ && !impatient_) wait_for_events(false);
  if (exit_code != 0 || output_.write_error() == 0) return exit_code;
  const JobOutcome lost = lost_output();
  output_.print("paceline: " + lost.text);
  return lost.exit_code;
}

// False if the job ends before it began.
bool Supervisor::meet_others() {
  if (!nodes_) return true;
  const auto meeting = [&] { return phase_ == Phase::Running && !orphaned_ && output_.write_error() == 0; };
  hear_others();
  remotes_.start(*options_.nodes, nodes_->rendezvous(), mask_, output_);
  while (!nodes_->placement() && meeting()) wait_for_events(true);
  return nodes_->placement().has_value() && meeting();
}

bool Supervisor::start_workers() {
  std::optional<LocalWorkers::Problem> problem;
  try {
    const JobFacts job = facts();
    const WorkerProgram like = program(job.world_size);
    ending_.watch_over(&workers_.emplace(options_, job));
    problem = workers_->start(like, output_);
  } catch (const Error& error) {
    ending_.announce(
        ending_.of_this_host({.text = error.message(), .exit_code = kExitInternal, .fault = error.fault()}));
    throw;
  }
  if (!problem) return true;
  start_exit_code_ = problem->exit_code;
  output_.print("paceline run: " + problem->text);
  ending_.announce(
      ending_.of_this_host({.text = problem->text, .exit_code = start_exit_code_, .fault = Fault::NeverJoined}));
  return false;
}

JobFacts Supervisor::facts() {
  JobFacts facts;
  if (nodes_) {
    facts = facts_of(*nodes_->placement(), options_.nodes->secret_file);
  } else {
    facts.id = random_digits(1);
    facts.store_address = store_->address();
    facts.world_size = options_.workers;
    port_ = reserve_port(SocketAddress(facts.master_address, 0), facts.master_port);
  }
  facts.terminal = output_.terminal();
  return facts;
}

WorkerProgram Supervisor::program(int world_size) const {
  WorkerProgram program{.executable = options_.executable, .arguments = options_.program, .environment = {}};
  program.signal_mask = mask_;
  program.open_files = open_files_for(world_size);
  return program;
}

void Supervisor::wait_for_events(bool workers_matter) {
  const bool running = phase_ == Phase::Running;
  std::vector<pollfd> polled{{signals_.get(), POLLIN, 0},
                             {launcher_.get(), POLLIN, 0},
                             {running && store_ != nullptr ? store_->left_too_early_fd() : -1, POLLIN, 0},
                             {nodes_ ? nodes_->fd() : -1, POLLIN, 0},
                             {input_open_ ? STDIN_FILENO : -1, POLLIN, 0}};
  output_.add_polled(polled);
  Nanoseconds nap = std::chrono::hours(1);
  if (workers_matter && running && workers_) nap = JobWatch::kPeriod;
  if (nodes_) nap = std::min(nap, nodes_->due().value_or(nap));
  if (workers_matter && next_phase_) nap = std::min(nap, next_phase_->left());
  if (workers_matter && next_notice_) nap = std::min(nap, next_notice_->left());
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
    ending_.worker_left_too_early();
    leave(options_.grace_after_failure());
  }
  if (nodes_) hear_others();
  if (polled[4].revents != 0) handle_input();
  if (workers_matter && output_.write_error() != 0) phase_ = Phase::Killing;
}

void Supervisor::handle_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;
    if (UserSignal::is(signal)) {
      pass_on({.number = signal, .node = options_.nodes ? options_.nodes->rank : 0});
      continue;
    }
    const std::string name = signal == SIGINT ? "Ctrl-C" : signal == SIGHUP ? "SIGHUP" : "SIGTERM";
    interrupt(signal, fmt::format("ended by signal {} ({})", signal, name));
  }
  reap();
}

void Supervisor::pass_on(const UserSignal& signal) {
  if (!workers_) return output_.print(fmt::format("paceline: {} came before the workers were started", signal.name()));
  if (!user_signals_.is_new(signal, now())) return;
  output_.print(fmt::format("paceline: {} goes to all workers", signal.name()));
  if (nodes_) nodes_->pass_on(signal);
  workers_->pass_on(signal.number);
}

void Supervisor::handle_input() {
  char bytes[256];
  input_open_ = ::read(STDIN_FILENO, bytes, sizeof bytes) > 0;
  if (!input_open_) interrupt(SIGTERM, "the launcher that started this one has ended");
}

void Supervisor::hear_others() {
  nodes_->advance();
  for (const std::string& line : nodes_->take_lines()) output_.print(line);
  for (WorkerEnd& end : nodes_->take_ends()) {
    if (ending_.worker_ended(std::move(end))) leave(options_.grace_after_failure());
  }
  for (const UserSignal& signal : workers_ ? nodes_->take_signals() : std::vector<UserSignal>()) {
    if (user_signals_.is_new(signal, now())) workers_->pass_on(signal.number);
  }
  if (nodes_->take_question()) nodes_->answer(workers_ ? workers_->views() : std::vector<RankView>());
  const std::optional<JobOutcome>& job_outcome = nodes_->job_outcome();
  if (!job_outcome || ending_.has_heard()) return;
  ending_.hear(*job_outcome);
  if (job_outcome->signal == 0) leave(options_.grace_after_failure());
  else if (phase_ == Phase::Running) interrupt(job_outcome->signal, job_outcome->text);
}

void Supervisor::reap() {
  while (const auto child = reap_child()) process_ended(child->pid, child->status);
  const auto failure = remotes_.failure();
  if (failure && !nodes_->placement() && phase_ == Phase::Running) fail(*failure);
}

void Supervisor::watch() {
  if (phase_ != Phase::Running) {
    // It takes no SIGTERM, and nobody waits for it any more.
    if (workers_->only_silent_left()) phase_ = Phase::Killing;
    return;
  }
  const JobWatch::News news = workers_->look();
  if (!news.stuck.empty()) {
    if (nodes_) nodes_->ranks_wait(news.waited);
    else output_.print(news.stuck);
  }
  if (news.standstill && !news.silent) fail(standstill_outcome(*news.standstill));
  if (!news.silent) return;
  const Error& cause = news.silent->cause;
  fail({.text = cause.message(), .exit_code = 128 + SIGKILL, .rank = cause.peer(), .fault = cause.fault()});
}

void Supervisor::wait_for_others() {
  if (!nodes_) return;
  if (output_.write_error() != 0) ending_.announce(ending_.of_this_host(lost_output()));
  LastErrors errors;
  for (const WorkerEnd& end : ending_.ends()) {
    if (end.failed()) errors[end.rank] = last_errors(end.rank);
  }
  nodes_->finished(errors);
  waits_for_others_ = true;
  while (!nodes_->all_finished() && !orphaned_ && !impatient_) wait_for_events(false);
  waits_for_others_ = false;
}

}  // namespace paceline::launch
