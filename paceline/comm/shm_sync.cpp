#include "paceline/comm/shm_sync.h"

#include <fmt/format.h>
#include <immintrin.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "paceline/base/cpu.h"
#include "paceline/comm/futex.h"

namespace paceline {
namespace {

// Longer than a peer that runs needs to arrive, shorter than what a sleep and wake-up costs twice (25 us each).
constexpr Nanoseconds kSpin = std::chrono::microseconds(50);
constexpr Nanoseconds kLookUp = std::chrono::milliseconds(20);

bool hung_up(const UniqueFd& link) {
  pollfd entry{link.get(), POLLRDHUP, 0};
  return link && poll(&entry, 1, 0) > 0 && (entry.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

}  // namespace

ShmSync::ShmSync(const ShmGroup& group, std::string name, Nanoseconds timeout)
    : group_(group),
      name_(std::move(name)),
      timeout_(timeout),
      oversubscribed_(group.world_size() > usable_cpus()),
      own_(group.control(group.rank)) {}

void ShmSync::publish(std::atomic<std::uint64_t>& counter, std::uint64_t number) {
  // Sequentially consistent, as is the sleeper's side: either it sees the counter, or we see that it sleeps.
  counter.store(number, std::memory_order_seq_cst);
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    RankControl& control = group_.control(peer);
    if (control.sleeping.load(std::memory_order_seq_cst) == 0) continue;
    control.doorbell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(control.doorbell);
  }
}

bool ShmSync::everyone(Counter counter, std::uint64_t& known, std::uint64_t number) {
  if (known >= number) return true;
  std::uint64_t least = UINT64_MAX;
  for (int peer = 0; peer < group_.world_size() && least >= number; ++peer) {
    least = std::min(least, (group_.control(peer).*counter).load(std::memory_order_seq_cst));
  }
  known = std::max(known, least);
  return least >= number;
}

void ShmSync::wait(Counter counter, std::uint64_t& known, std::uint64_t number) {
  if (spin(counter, known, number)) return;
  Nanoseconds waited{}, looked = now();
  for (;;) {
    check();
    const std::uint32_t bell = own_.doorbell.load(std::memory_order_seq_cst);
    own_.sleeping.store(1, std::memory_order_seq_cst);
    const bool ready = everyone(counter, known, number);
    if (!ready) futex_wait(own_.doorbell, bell, kLookUp);
    own_.sleeping.store(0, std::memory_order_seq_cst);
    if (ready || everyone(counter, known, number)) return;
    look_for_lost_peers(counter, number);
    // A look-up that took long is this rank's own absence (a suspended job), not a peer's.
    waited += std::min(now() - std::exchange(looked, now()), 5 * kLookUp);
    if (waited >= timeout_) time_out(counter, number);
  }
}

bool ShmSync::spin(Counter counter, std::uint64_t& known, std::uint64_t number) {
  const Deadline deadline(kSpin);
  do {
    for (int i = 0; i < 16; ++i) {
      if (everyone(counter, known, number)) return true;
      if (oversubscribed_) sched_yield();
      else _mm_pause();
    }
  } while (!deadline.passed());
  return false;
}

void ShmSync::look_for_lost_peers(Counter counter, std::uint64_t number) {
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    RankControl& control = group_.control(peer);
    const bool left = control.left.load(std::memory_order_acquire) != 0;
    if (!left && !hung_up(group_.links[peer])) continue;
    if ((control.*counter).load(std::memory_order_seq_cst) >= number) continue;  // gone, but not before its part
    const auto what = describe(own_.slot(number).signature);
    if (left) {
      fail_and_throw(
          {ErrorCode::PeerLost,
           fmt::format("rank {} ended its communicator '{}' after {}, while rank {} waits for it in {}; do all "
                       "ranks run the same number of steps?",
                       peer, name_, where_is(peer), group_.rank, what),
           group_.rank, peer});
    }
    fail_and_throw(
        {ErrorCode::PeerLost,
         fmt::format("rank {} (pid {}) died after {}; rank {} saw it in {}. Its own output or the launcher's "
                     "summary says why",
                     peer, control.pid, where_is(peer), group_.rank, what),
         group_.rank, peer});
  }
}

void ShmSync::time_out(Counter counter, std::uint64_t number) {
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    if ((group_.control(peer).*counter).load(std::memory_order_seq_cst) >= number) continue;
    fail_and_throw(
        {ErrorCode::Timeout,
         fmt::format("rank {} waited {:.0f} s in {} for rank {}, which is at {}. If rank {} is only slow, raise "
                     "PACELINE_TIMEOUT (seconds)",
                     group_.rank, seconds(timeout_), describe(own_.slot(number).signature), peer, where_is(peer), peer),
         group_.rank, peer});
  }
  check();
  throw Error(ErrorCode::Timeout, "waited too long", group_.rank);
}

std::string ShmSync::where_is(int rank) const {
  RankControl& control = group_.control(rank);
  const std::uint64_t number = control.arrived.load(std::memory_order_acquire);
  return number == 0 ? "no operation yet" : describe(control.slot(number).signature);
}

void ShmSync::check() const {
  const FailureRecord& record = group_.control(0).failure;
  if (record.state.load(std::memory_order_acquire) != FailureRecord::kSet) return;
  throw Error(static_cast<ErrorCode>(record.code), record.message, group_.rank,
              record.peer != group_.rank ? record.peer : record.rank);
}

void ShmSync::fail(const Error& cause) noexcept {
  FailureRecord& record = group_.control(0).failure;
  std::uint32_t none = FailureRecord::kNone;
  if (!record.state.compare_exchange_strong(none, FailureRecord::kWriting)) return;
  record.code = static_cast<std::int32_t>(cause.code());
  record.rank = cause.rank();
  record.peer = cause.peer();
  const std::size_t length = std::min(cause.message().size(), sizeof record.message - 1);
  std::memcpy(record.message, cause.message().data(), length);
  record.message[length] = '\0';
  record.state.store(FailureRecord::kSet, std::memory_order_release);
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    group_.control(peer).doorbell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(group_.control(peer).doorbell);
  }
}

void ShmSync::fail_and_throw(const Error& cause) {
  fail(cause);
  const FailureRecord& record = group_.control(0).failure;
  // Another rank may be writing; it may also have died doing so.
  const Deadline patience(kLookUp);
  while (record.state.load(std::memory_order_acquire) != FailureRecord::kSet && !patience.passed()) sched_yield();
  check();
  throw cause;
}

void ShmSync::leave() noexcept { own_.left.store(1, std::memory_order_release); }

}  // namespace paceline
