#include "paceline/launch/failure/job_record.h"

#include "paceline/launch/failure/job_outcome.h"

namespace paceline::launch {

void JobRecord::add(const JobOutcome& trouble) {
  if (trouble_) return;
  trouble_ = trouble;
  before_trouble_ = ends_.size();
}

void JobRecord::ended_too_early(int rank) {
  for (WorkerEnd& end : ends_) end.too_early |= end.rank == rank && end.status == 0;
}

const WorkerEnd* JobRecord::cause() const {
  const WorkerEnd* const first = first_cause(ends_, first_to_report_);
  if (first == nullptr || !trouble_) return first;
  const bool came_before = static_cast<std::size_t>(first - ends_.data()) < before_trouble_;
  // A silent worker ends later than it is known to be silent.
  const bool is_the_trouble = first->silence && first->rank == trouble_->rank;
  return is_the_trouble || (came_before && !only_saw_another_fail(*first)) ? first : nullptr;
}

JobOutcome JobRecord::job_outcome(const std::deque<std::string>& last_errors) const {
  if (const WorkerEnd* const first = cause()) {
    return {
        .text = failure_text(ends_, *first, last_errors), .exit_code = exit_code_of(*first), .fault = fault_of(*first)};
  }
  if (!trouble_) return {};
  return {.text = trouble_text(ends_, trouble_->text, trouble_->fault),
          .exit_code = trouble_->exit_code,
          .fault = trouble_->fault};
}

}  // namespace paceline::launch
