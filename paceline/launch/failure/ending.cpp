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
  const JobOutcome job_outcome{
      .text = early->message, .exit_code = 1, .rank = early->rank, .fault = Fault::NeverJoined};
  tell_workers(job_outcome);
  announce(job_outcome);
}

void JobEnding::fail(const JobOutcome& job_outcome) {
  record_.add(job_outcome);
  tell_workers(job_outcome);
  announce(job_outcome);
}

void JobEnding::hear(const JobOutcome& job_outcome) {
  heard_ = true;
  if (job_outcome.signal == 0) fail(job_outcome);
}

void JobEnding::announce(const JobOutcome& job_outcome) {
  if (nodes_ != nullptr && (store_ != nullptr || !heard_)) nodes_->announce(job_outcome);
}

JobOutcome JobEnding::of_this_host(JobOutcome job_outcome) const {
  if (nodes_ == nullptr || !nodes_->placement()) return job_outcome;
  job_outcome.text = nodes_->placement()->who + " " + job_outcome.text;
  job_outcome.rank = nodes_->placement()->first_rank;
  return job_outcome;
}

JobOutcome JobEnding::job_outcome(const std::function<std::deque<std::string>(int)>& last_errors) {
  if (store_ != nullptr) {
    if (const auto early = store_->left_too_early()) record_.ended_too_early(early->rank);
    if (const auto told = store_->first_failure()) record_.reported_first(told->rank);
  }
  const WorkerEnd* const cause = record_.cause();
  return record_.job_outcome(cause != nullptr ? last_errors(cause->rank) : std::deque<std::string>());
}

void JobEnding::tell_workers(const JobOutcome& job_outcome) {
  const Error cause = job_outcome.cause();
  if (store_ != nullptr) store_->fail(job_outcome.rank, cause);
  if (workers_ != nullptr) workers_->fail(cause);
}

}  // namespace paceline::launch
