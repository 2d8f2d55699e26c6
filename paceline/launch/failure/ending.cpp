#include "paceline/launch/failure/ending.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <utility>

#include "paceline/launch/failure/job_outcome.h"

namespace paceline::launch {

bool JobEnding::worker_ended(WorkerEnd end) {
  if (store_ != nullptr) {
    const auto reports = store_->failures();
    const auto own = reports.find(end.rank);
    if (own != reports.end() && end.hidden_code != 0) end.status = W_EXITCODE(end.hidden_code, 0);
    if (own != reports.end() && end.failed()) end.report = own->second;
  }
  const bool failed = end.failed();
  if (!failed && store_ != nullptr) store_->left(end.rank);
  if (failed) {
    if (store_ != nullptr) {
      store_->fail(end.rank, {fault_of(end),
                              fmt::format("rank {} {} after {:.1f} s", end.rank, describe_end(end), seconds(end.after)),
                              Error::kNoRank, end.rank});
    }
    const Error cause = failure_for_others(end);
    // Of a worker that exits, node 0 may know what it said itself; other nodes wait for what node 0 makes of it.
    const bool known = store_ != nullptr || WIFSIGNALED(end.status) || end.unseen || end.silence;
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
  if (store_ != nullptr) store_->fail(verdict.rank, cause);
  if (workers_ != nullptr) workers_->fail(cause);
}

}  // namespace paceline::launch
