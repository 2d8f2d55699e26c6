// How a job ends: who is ended when, and what the user reads.
#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "paceline/base/exit_codes.h"
#include "paceline/base/process_tree.h"
#include "paceline/launch/job.h"
#include "paceline/launch/rank_list.h"

namespace paceline::launch {
namespace {

// Between SIGTERM and SIGKILL.
constexpr std::chrono::seconds kTermTime{5};
// A signal that ends a wait of this length is taken for the end of a hang.
constexpr std::chrono::seconds kHang{5};
// After a signal: when the user is told who is waited for.
constexpr std::chrono::seconds kFirstNotice{2};

}  // namespace

void Supervisor::interrupt(int signal, std::string how) {
  if (phase_ != Phase::Running && (!waits_for_others_ || interrupted_by_ != 0)) {
    // Asked again, or while it already ends after a failure: the user does not want to wait.
    impatient_ = true;
    phase_ = Phase::Killing;
    return;
  }
  if (nodes_ && nodes_->placement() && !ending_.has_heard()) how += " on " + nodes_->placement()->who;
  interrupted_by_ = signal;
  interrupted_how_ = how;
  ending_.announce({.text = how, .exit_code = 128 + signal, .signal = signal});
  if (workers_ && workers_->wait_in_vain(kHang)) hung_ = workers_->views();
  if (workers_) workers_->pass_on(signal);
  leave(options_.grace_after_signal());
  next_notice_ = Deadline(kFirstNotice);
}

void Supervisor::process_ended(pid_t pid, int status) {
  remotes_.ended(pid, status);
  auto end = workers_ ? workers_->ended(pid, status) : std::nullopt;
  if (!end) return;
  if (nodes_) {
    end->node = nodes_->placement()->who;
    nodes_->worker_ended(*end);
  }
  if (ending_.worker_ended(*std::move(end))) leave(options_.grace_after_failure());
}

void Supervisor::fail(const JobOutcome& job_outcome) {
  ending_.fail(job_outcome);
  leave(options_.grace_after_failure());
}

void Supervisor::leave(std::chrono::milliseconds grace) {
  if (phase_ != Phase::Running) return;
  phase_ = Phase::Leaving;
  next_phase_ = Deadline(grace);
}

void Supervisor::advance_when_due() {
  if (next_notice_ && next_notice_->passed()) say_who_is_waited_for();
  if (!next_phase_ || !next_phase_->passed() || phase_ == Phase::Killing) return;
  if (phase_ == Phase::Terminating) {
    phase_ = Phase::Killing;
    return;
  }
  phase_ = Phase::Terminating;
  next_phase_ = Deadline(kTermTime);
  workers_->stop(SIGTERM);
}

void Supervisor::say_who_is_waited_for() {
  next_notice_.reset();
  if (phase_ != Phase::Leaving || next_phase_->left() < std::chrono::seconds(1)) return;
  const auto left = std::chrono::ceil<std::chrono::seconds>(next_phase_->left());
  const std::vector<int> ranks = workers_->ranks_alive();
  const bool one = ranks.size() == 1;
  output_.print(fmt::format("paceline: {} {} not ended yet, and {} {} s more (--grace); a second {} kills {}",
                            join_ranks(ranks), one ? "has" : "have", one ? "has" : "have", left.count(),
                            interrupted_by_ == SIGINT ? "Ctrl-C" : "signal", one ? "it" : "them"));
}

// Only the workers: other children carry other hosts' output.
void Supervisor::stop_workers() {
  if (workers_) workers_->stop(SIGKILL);
  while (workers_left() && !orphaned_) wait_for_events(false);
}

void Supervisor::end_everything() {
  if (workers_) workers_->stop(SIGKILL);
  const auto survivors = end_descendants([this](pid_t pid, int status) { process_ended(pid, status); });
  for (const std::string& left : survivors) output_.print("paceline: " + left);
}

std::deque<std::string> Supervisor::last_errors(int rank) const {
  if (const auto slot = workers_ ? workers_->slot_of(rank) : std::nullopt) return output_.last_errors(*slot);
  if (!nodes_) return {};
  const auto found = nodes_->last_errors().find(rank);
  return found == nodes_->last_errors().end() ? std::deque<std::string>() : found->second;
}

// Prints how the job has ended.
int Supervisor::conclude() {
  const std::optional<JobOutcome> outcome = store_ == nullptr ? nodes_->outcome() : std::nullopt;
  const JobOutcome job_outcome = outcome ? *outcome : judge();
  // Where one terminal shows all hosts' output, node 0 says it of all.
  const bool told_here = !options_.nodes || !options_.nodes->ends_with_input;
  if (outcome && outcome->exit_code != 0) output_.print("paceline: " + outcome->text + (told_here ? killed() : ""));
  else if (!outcome && !job_outcome.text.empty()) output_.print(job_outcome.text);
  if (!hung_.empty()) {
    output_.print("paceline: the last operations of each rank\n" + operations_text(hung_, 4, now()));
  } else if (workers_ && job_outcome.exit_code != 0 && code_of(job_outcome.fault) == ErrorCode::Timeout) {
    output_.print("  the last operations of each rank:\n" + operations_text(workers_->views(), 4, now()));
  }
  if (nodes_ && !outcome) {
    // The others get the first line, without whose it is.
    std::string text = job_outcome.text.substr(0, job_outcome.text.find('\n'));
    if (text.starts_with("paceline: ")) text = text.substr(10);
    nodes_->conclude(
        {.text = text, .exit_code = job_outcome.exit_code, .signal = job_outcome.signal, .fault = job_outcome.fault});
  }
  return job_outcome.exit_code;
}

JobOutcome Supervisor::judge() {
  if (start_exit_code_ != 0) return {.text = "", .exit_code = start_exit_code_};
  if (output_.write_error() != 0 && interrupted_by_ == 0) {
    const JobOutcome lost = lost_output();
    return {.text = "paceline: " + lost.text, .exit_code = lost.exit_code};
  }
  if (interrupted_by_ != 0) {
    return {.text = "paceline: " + interrupted_how_ + killed(),
            .exit_code = 128 + interrupted_by_,
            .signal = interrupted_by_};
  }
  return ending_.job_outcome([this](int rank) { return last_errors(rank); });
}

/// Lines on those whom a signal to the launcher did not end.
std::string Supervisor::killed() const {
  if (interrupted_by_ == 0) return "";
  const std::string ranks = killed_ranks(ending_.ends());
  if (ranks.empty()) return "";
  const char* const were = ranks.starts_with("ranks") ? "were" : "was";
  if (impatient_) return fmt::format("\n  {} had not ended and {} killed when a second signal came", ranks, were);
  return fmt::format("\n  {} had not ended within {} s and {} killed; --grace SECONDS gives more time", ranks,
                     static_cast<double>(options_.grace_after_signal().count()) / 1000, were);
}

JobOutcome Supervisor::lost_output() const {
  const int error = output_.write_error();
  return {.text = fmt::format("ended the job, since its output cannot be written: {}",
                              std::generic_category().message(error)),
          .exit_code = error == EPIPE ? 128 + SIGPIPE : kExitOutput};
}

}  // namespace paceline::launch
