#include "paceline/tools/run_ending.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <utility>

#include "paceline/tools/run_verdict.h"

namespace paceline::tools {

bool JobEnding::worker_ended(WorkerEnd end) {
  const bool failed = end.status != 0;
  if (!failed && store_ != nullptr) store_->left(end.rank);
  if (failed) {
    if (store_ != nullptr) {
      const auto reports = store_->failures();
      if (const auto own = reports.find(end.rank); own != reports.end()) end.report = own->second;
      store_->fail(end.rank, label_of(fault_of(end)),
                   fmt::format("rank {} {} after {:.1f} s", end.rank, describe_status(end.status), seconds(end.after)));
    }
    const Error cause = failure_for_others(end);
    // Of a worker that exits, node 0 may know what it said itself; other nodes wait for what node 0 makes of it.
    const bool known = store_ != nullptr || WIFSIGNALED(end.status) || end.silence;
    if (workers_ != nullptr && known) workers_->fail(cause);
    if (store_ != nullptr) {
      announce({.text = cause.message(), .exit_code = exit_code_of(end), .rank = end.rank, .fault = cause.fault()});
    }
  }
  record_.add(std::move(end));
  return failed;
}

void JobEnding::worker_left_too_early() {
  const auto early = store_->left_too_early();
  if (!early) return;
  const Verdict verdict{.text = early->message, .exit_code = 1, .rank = early->rank, .fault = Fault::NeverJoined};
  tell_workers(verdict);
  announce(verdict);
}

void JobEnding::fail(const Verdict& verdict) {
  record_.add(verdict);
  tell_workers(verdict);
  announce(verdict);
}

void JobEnding::hear(const Verdict& verdict) {
  heard_ = true;
  if (verdict.signal == 0) fail(verdict);
}

void JobEnding::announce(const Verdict& verdict) {
  if (nodes_ != nullptr && (store_ != nullptr || !heard_)) nodes_->announce(verdict);
}

Verdict JobEnding::of_this_host(Verdict verdict) const {
  if (nodes_ == nullptr || !nodes_->placement()) return verdict;
  verdict.text = nodes_->placement()->who + " " + verdict.text;
  verdict.rank = nodes_->placement()->first_rank;
  return verdict;
}

Verdict JobEnding::verdict(const std::function<std::deque<std::string>(int)>& last_errors) {
  if (store_ != nullptr) {
    if (const auto early = store_->left_too_early()) record_.ended_too_early(early->rank);
    if (const auto told = store_->first_failure()) record_.reported_first(told->rank);
  }
  const WorkerEnd* const cause = record_.cause();
  return record_.verdict(cause != nullptr ? last_errors(cause->rank) : std::deque<std::string>());
}

void JobEnding::tell_workers(const Verdict& verdict) {
  const Error cause = verdict.cause();
  if (store_ != nullptr && verdict.rank >= 0) store_->fail(verdict.rank, cause.label(), cause.message());
  if (workers_ != nullptr) workers_->fail(cause);
}

}  // namespace paceline::tools
