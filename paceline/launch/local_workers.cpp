#include "paceline/launch/local_workers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "paceline/base/exit_codes.h"

namespace paceline::launch {
namespace {

StatusFacts status_facts(const RunOptions& options, const JobFacts& job) {
  return {.slots = options.workers,
          .world_size = job.world_size,
          .first_rank = job.first_rank,
          .launcher = ::getppid(),
          .job = job.id,
          .program = fmt::format("{}", fmt::join(options.program, " "))};
}

}  // namespace

LocalWorkers::LocalWorkers(const RunOptions& options, JobFacts job)
    : options_(options),
      job_(std::move(job)),
      job_status_(status_facts(options, job_)),
      watch_(job_status_, options.watch) {
  job_.job_status_address = job_status_.address();
}

std::optional<LocalWorkers::Problem> LocalWorkers::start(WorkerProgram like, JobOutput& output) {
  like.inherited = job_status_.fd();
  for (int slot = 0; slot < options_.workers; ++slot) {
    like.environment = worker_environment(options_, job_, slot);
    StartedWorker started = start_worker(like);
    workers_.push_back({.pid = started.pid});
    job_status_.started(slot, started.pid);
    output.add_worker(std::move(started.out), std::move(started.err), job_.first_rank);
    if (started.start_error == 0) continue;
    const char* hint = started.start_error == ENOEXEC  ? "; a script needs a first line such as #!/bin/sh"
                       : started.start_error == ENOENT ? "; if it is a script, its interpreter is missing"
                                                       : "";
    return Problem{fmt::format("cannot start {}: {}{}", options_.executable,
                               std::generic_category().message(started.start_error), hint),
                   started.start_error == ENOENT ? kExitNotFound : kExitNotExecutable};
  }
  return std::nullopt;
}

std::optional<WorkerEnd> LocalWorkers::ended(pid_t pid, int status) {
  const auto worker = std::find_if(workers_.begin(), workers_.end(),
                                   [&](const Worker& other) { return other.alive && other.pid == pid; });
  if (worker == workers_.end()) return std::nullopt;
  const int slot = static_cast<int>(worker - workers_.begin());
  worker->alive = false;
  job_status_.ended(slot);
  const RankView view = view_of(job_status_, slot, now());
  WorkerEnd end{.rank = view.rank, .status = status, .after = now() - began_, .stopped = worker->stopped};
  end.host = job_status_.header().host;
  end.pid = view.pid;
  if (!view.operations.empty()) end.last_known = last_known(view);
  if (silent_ && silent_->slot == slot) end.silence = silent_->cause;
  if (!worker->stopped) look_through_script(view, pid, end);
  return end;
}

// What the launcher started need not be what joined: a script in between may hide how that ended.
void LocalWorkers::look_through_script(const RankView& view, pid_t started, WorkerEnd& end) const {
  const bool joined = view.pid != started || !view.operations.empty();
  const bool itself = joined && view.pid == started;
  const int code = WIFEXITED(end.status) ? WEXITSTATUS(end.status) : 0;
  const bool exited = view.exit_code.has_value();
  if (code > 128 && !itself && view.exit_code != code && ::sigabbrev_np(code - 128) != nullptr) {
    end.status = W_EXITCODE(0, code - 128);  // as shells say that a signal killed what they have started
    end.by_shell = true;
  }
  const bool died_unseen = joined && !itself && view.beats && !exited && WIFEXITED(end.status);
  end.unseen = died_unseen && end.status == 0;
  end.left = joined && view.beats && end.status == 0 && (itself || exited) && view.exit_code.value_or(0) == 0;
  if (end.status == 0 && !itself && view.exit_code.value_or(0) != 0) {
    end.hidden_code = *view.exit_code;
    if (view.beats) end.status = W_EXITCODE(end.hidden_code, 0);
  }
  const bool killed = WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGKILL;
  if (killed || died_unseen) end.out_of_memory = memory_.evidence();
}

bool LocalWorkers::any_alive() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.alive; });
}

std::vector<int> LocalWorkers::ranks_alive() const {
  std::vector<int> ranks;
  for (std::size_t slot = 0; slot < workers_.size(); ++slot) {
    if (workers_[slot].alive) ranks.push_back(job_.first_rank + static_cast<int>(slot));
  }
  return ranks;
}

void LocalWorkers::pass_on(int signal) {
  // While a worker is not reaped its pid, and so its group, is its own.
  for (const Worker& worker : workers_) {
    if (worker.alive) ::kill(-worker.pid, signal);
  }
}

void LocalWorkers::stop(int signal) {
  for (Worker& worker : workers_) worker.stopped |= worker.alive;
  pass_on(signal);
}

JobWatch::News LocalWorkers::look() {
  if (next_look_ && !next_look_->passed()) return {};
  next_look_.emplace(JobWatch::kPeriod);
  JobWatch::News news = watch_.look(now());
  if (news.silent) silent_ = news.silent;
  return news;
}

bool LocalWorkers::only_silent_left() const {
  if (!silent_) return false;
  for (std::size_t slot = 0; slot < workers_.size(); ++slot) {
    if (workers_[slot].alive && static_cast<int>(slot) != silent_->slot) return false;
  }
  return true;
}

std::optional<int> LocalWorkers::slot_of(int rank) const {
  const int slot = rank - job_.first_rank;
  if (slot < 0 || slot >= static_cast<int>(workers_.size())) return std::nullopt;
  return slot;
}

}  // namespace paceline::launch
