#pragma once

#include <immintrin.h>
#include <sched.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paceline/base/error.h"
#include "paceline/comm/shm/group.h"
#include "paceline/comm/status/job_status.h"

namespace paceline {

/// How the ranks of a shared-memory group wait for each other, and how they fail together.
///
/// A rank publishes an operation's slot when it enters it and counts up `finished` when it has done its share. Waiting:
/// a short spin (yielding the processor where ranks outnumber the processors they may use), then sleep on this rank's
/// doorbell, which others ring. Sleepers look up 50 times a second for a peer that died, for the job's failure, and for
/// the deadline.
class ShmSync {
 public:
  /// What a wait is for; tells which ranks are late when it lasts.
  enum class Stage { Arrival, Finish };

  ShmSync(const ShmGroup& group, std::string name, Nanoseconds timeout,
          std::shared_ptr<const JobStatus> job_status = nullptr);

  /// The slot of `number` must be filled in. Wakes those that sleep.
  void publish_arrival(std::uint64_t number) {
    publish_arrival_quietly(number);
    wake_sleepers();
  }
  /// The same for a small operation whose end comes a moment later: whoever sleeps learns of it with the next
  /// wake_sleepers() only, and this rank does not wait for the fence in it while others look at the slot.
  void publish_arrival_quietly(std::uint64_t number) {
    own_.slot(number).number.store(number, std::memory_order_release);
    own_.arrived.store(number, std::memory_order_release);
  }
  /// Wakes those that sleep.
  void publish_finish(std::uint64_t number) {
    own_.finished.store(number, std::memory_order_release);
    wake_sleepers();
  }
  /// Of the operation after the last one that everyone was seen to have entered, or of an earlier one.
  bool everyone_arrived(std::uint64_t number) {
    if (known_arrived_ >= number) return true;
    for (; next_to_arrive_ < world_size(); ++next_to_arrive_) {
      if (is_late(next_to_arrive_, Stage::Arrival, number)) return false;
    }
    known_arrived_ = number;
    next_to_arrive_ = 0;
    return true;
  }
  bool everyone_finished(std::uint64_t number);

  /// Block until everyone_arrived(), everyone_finished(), or what `ready()` says. Throw the group's failure; a peer
  /// that is lost or late in `stage` becomes one.
  void wait_arrival(std::uint64_t number);
  void wait_finish(std::uint64_t number);
  template <class Ready>
  void wait(Stage stage, std::uint64_t number, Ready&& ready);

  /// Wakes those that sleep, to look whether what they wait for has come.
  void wake_sleepers() {
    // With the sequentially consistent stores and loads of a sleeper: either it sees what was stored before, or we see
    // that it sleeps.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (RankControl* control : controls_) {
      if (control->sleeping.load(std::memory_order_seq_cst) != 0) ring(*control);
    }
  }

  /// True where ranks outnumber the processors that they may use.
  bool oversubscribed() const { return oversubscribed_; }

  /// Throws the group's failure, if there is one.
  void check() const {
    if (controls_[0]->failure.state.load(std::memory_order_acquire) != FailureRecord::kNone) throw_failure();
  }
  /// Makes `cause` the group's failure, unless it has one, and wakes everyone. From any thread. After it, check()
  /// throws.
  void fail(const Error& cause) noexcept;
  /// fail(), then throws the group's failure, which is another one if another rank was first.
  [[noreturn]] void fail_and_throw(const Error& cause);

  /// Tells the others that this rank will enter no further operation.
  void leave() noexcept;

  RankControl& control(int rank) const { return *controls_[rank]; }
  int rank() const { return rank_; }
  int world_size() const { return static_cast<int>(controls_.size()); }

 private:
  template <class Ready>
  bool spin(Ready&& ready);
  /// The waits that were long: what has been slept, and since when.
  struct LongWait {
    Nanoseconds waited{}, looked = now();
  };
  static void ring(RankControl& control);
  std::uint32_t lie_down();
  void sleep(std::uint32_t bell);
  void get_up();
  void hear_of_job(const std::string& what, bool wait);
  void look_around(Stage stage, std::uint64_t number, LongWait& long_wait);
  bool is_late(int peer, Stage stage, std::uint64_t number) const {
    if (stage == Stage::Finish) return controls_[peer]->finished.load(std::memory_order_seq_cst) < number;
    return controls_[peer]->slot(number).number.load(std::memory_order_seq_cst) != number;
  }
  [[noreturn]] void time_out(Stage stage, std::uint64_t number);
  std::string where_is(int rank) const;
  std::string describe_own(std::uint64_t number) const;
  void throw_failure() const;

  const ShmGroup& group_;
  const int rank_;
  const std::vector<RankControl*> controls_;
  const std::string name_;
  const Nanoseconds timeout_;
  const std::shared_ptr<const JobStatus> job_status_;
  const bool oversubscribed_;
  RankControl& own_;
  std::uint64_t known_arrived_ = 0, known_finished_ = 0;  // everyone is at least there
  int next_to_arrive_ = 0;                                // ranks before it have entered known_arrived_ + 1
};

template <class Ready>
void ShmSync::wait(Stage stage, std::uint64_t number, Ready&& ready) {
  if (spin(ready)) return;
  LongWait long_wait;
  for (;;) {
    check();
    const std::uint32_t bell = lie_down();
    const bool is_ready = ready();
    if (!is_ready) sleep(bell);
    get_up();
    if (is_ready || ready()) return;
    look_around(stage, number, long_wait);
  }
}

template <class Ready>
bool ShmSync::spin(Ready&& ready) {
  // Longer than a peer that runs needs to arrive, shorter than what a sleep and wake-up costs twice (25 us each).
  const Nanoseconds kSpin = std::chrono::microseconds(50) * (oversubscribed_ ? world_size() : 1);
  // A pause takes 40 ns and a look at the clock 25: too long while a peer is on its way.
  constexpr int kEager = 300;
  for (int i = 0; i < kEager && !(oversubscribed_ && i > 0); ++i) {
    if (ready()) return true;
  }
  const Deadline deadline(kSpin);
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      if (oversubscribed_) sched_yield();
      else _mm_pause();
    }
  } while (!deadline.passed());
  return false;
}

}  // namespace paceline
