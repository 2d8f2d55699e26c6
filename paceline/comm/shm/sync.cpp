#include "paceline/comm/shm/sync.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "paceline/base/cpu.h"
#include "paceline/comm/shm/futex.h"

namespace paceline {
namespace {

constexpr Nanoseconds kLookUp = std::chrono::milliseconds(20);

bool has_died(const PeerLink& link) {
  if (!link.socket) return false;
  pollfd entries[] = {{link.socket.get(), POLLRDHUP, 0}, {link.process.get(), POLLIN, 0}};
  return poll(entries, 2, 0) > 0 &&
         ((entries[0].revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0 || (entries[1].revents & POLLIN) != 0);
}

std::vector<RankControl*> controls_of(const ShmGroup& group) {
  std::vector<RankControl*> controls;
  for (int rank = 0; rank < group.world_size(); ++rank) controls.push_back(&group.control(rank));
  return controls;
}

bool is_oversubscribed(const std::vector<RankControl*>& controls) {
  std::vector<CpuAllowance> allowances;
  for (const RankControl* control : controls) allowances.push_back(control->cpus);
  return static_cast<int>(controls.size()) > usable_cpus(allowances);
}

}  // namespace

ShmSync::ShmSync(const ShmGroup& group, std::string name, Nanoseconds timeout,
                 std::shared_ptr<const JobStatus> job_status)
    : group_(group),
      rank_(group.rank),
      controls_(controls_of(group)),
      name_(std::move(name)),
      timeout_(timeout),
      job_status_(std::move(job_status)),
      oversubscribed_(is_oversubscribed(controls_)),
      own_(*controls_[rank_]) {}

bool ShmSync::everyone_finished(std::uint64_t number) {
  if (known_finished_ >= number) return true;
  std::uint64_t least = UINT64_MAX;
  for (const RankControl* control : controls_) {
    least = std::min(least, control->finished.load(std::memory_order_seq_cst));
    if (least < number) return false;
  }
  known_finished_ = least;
  return true;
}

void ShmSync::wait_arrival(std::uint64_t number) {
  wait(Stage::Arrival, number, [&] { return everyone_arrived(number); });
}

void ShmSync::wait_finish(std::uint64_t number) {
  wait(Stage::Finish, number, [&] { return everyone_finished(number); });
}

void ShmSync::ring(RankControl& control) {
  control.doorbell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(control.doorbell);
}

std::uint32_t ShmSync::lie_down() {
  const std::uint32_t bell = own_.doorbell.load(std::memory_order_seq_cst);
  own_.sleeping.store(1, std::memory_order_seq_cst);
  return bell;
}

void ShmSync::sleep(std::uint32_t bell) { futex_wait(own_.doorbell, bell, kLookUp); }

void ShmSync::get_up() { own_.sleeping.store(0, std::memory_order_seq_cst); }

// The launcher knows more of a peer's end than its peers do, and is about as fast; it is also waited for.
void ShmSync::hear_of_job(const std::string& what, bool wait) {
  try {
    if (wait) job_status_->await_failure(rank_, what);
    else job_status_->check(rank_, what);
  } catch (const Error& error) {
    fail_and_throw(error);
  }
}

void ShmSync::look_around(Stage stage, std::uint64_t number, LongWait& long_wait) {
  if (job_status_ && job_status_->failed()) hear_of_job(describe_own(number), false);
  for (int peer = 0; peer < world_size(); ++peer) {
    const bool left = controls_[peer]->left.load(std::memory_order_acquire) != 0;
    if (!left && !has_died(group_.links[peer])) continue;
    if (!is_late(peer, stage, number)) continue;  // gone, but not before its part
    const auto what = describe_own(number);
    if (left) {
      fail_and_throw(
          {Fault::PeerLeft,
           fmt::format("rank {} ended its communicator '{}' after {}, while rank {} waits for it in {}; do all "
                       "ranks run the same number of steps?",
                       peer, name_, where_is(peer), rank_, what),
           rank_, peer, Cause::Consequence});
    }
    if (job_status_) hear_of_job(what, true);
    fail_and_throw({Fault::PeerDied,
                    fmt::format("rank {} (pid {}) died after {}; rank {} saw it in {}. Its own output or the "
                                "launcher's summary says why",
                                peer, controls_[peer]->pid, where_is(peer), rank_, what),
                    rank_, peer, Cause::Consequence});
  }
  // A look-up that took long is this rank's own absence (a suspended job), not a peer's.
  long_wait.waited += std::min(now() - std::exchange(long_wait.looked, now()), 5 * kLookUp);
  if (long_wait.waited >= timeout_) time_out(stage, number);
}

void ShmSync::time_out(Stage stage, std::uint64_t number) {
  for (int peer = 0; peer < world_size(); ++peer) {
    if (!is_late(peer, stage, number)) continue;
    fail_and_throw({ErrorCode::Timeout,
                    fmt::format("rank {} waited {:.0f} s in {} for rank {}, which is at {}. If rank {} is only slow, "
                                "raise PACELINE_TIMEOUT (seconds)",
                                rank_, seconds(timeout_), describe_own(number), peer, where_is(peer), peer),
                    rank_, peer});
  }
  check();
  throw Error(ErrorCode::Timeout, "waited too long", rank_);
}

std::string ShmSync::describe_own(std::uint64_t number) const { return describe(own_.details_of(number).signature); }

std::string ShmSync::where_is(int rank) const {
  const std::uint64_t number = controls_[rank]->arrived.load(std::memory_order_acquire);
  return number == 0 ? "no operation yet" : describe(controls_[rank]->details_of(number).signature);
}

void ShmSync::throw_failure() const {
  const FailureRecord& record = controls_[0]->failure;
  if (record.state.load(std::memory_order_acquire) != FailureRecord::kSet) return;
  throw Error(static_cast<Fault>(record.fault), record.message, record.rank, record.peer,
              static_cast<Cause>(record.cause))
      .heard_by(rank_);
}

void ShmSync::fail(const Error& cause) noexcept {
  FailureRecord& record = controls_[0]->failure;
  std::uint32_t none = FailureRecord::kNone;
  if (!record.state.compare_exchange_strong(none, FailureRecord::kWriting)) {
    // Another rank was first and may be writing; it may also have died doing so.
    const Deadline deadline(kLookUp);
    while (record.state.load(std::memory_order_acquire) != FailureRecord::kSet && !deadline.passed()) sched_yield();
    return;
  }
  record.fault = static_cast<std::int32_t>(cause.fault());
  record.rank = cause.rank();
  record.peer = cause.peer();
  record.cause = static_cast<std::int32_t>(cause.cause());
  const std::size_t length = std::min(cause.message().size(), sizeof record.message - 1);
  std::memcpy(record.message, cause.message().data(), length);
  record.message[length] = '\0';
  record.state.store(FailureRecord::kSet, std::memory_order_release);
  for (RankControl* control : controls_) ring(*control);
}

void ShmSync::fail_and_throw(const Error& cause) {
  fail(cause);
  check();
  throw cause;
}

void ShmSync::leave() noexcept { own_.left.store(1, std::memory_order_release); }

}  // namespace paceline
