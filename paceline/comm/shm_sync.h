#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "paceline/base/error.h"
#include "paceline/comm/shm_group.h"

namespace paceline {

/// How the ranks of a shared-memory group wait for each other, and how they fail together.
///
/// A rank counts up `arrived` when it enters an operation and `finished` when it has done its share. Waiting: a short
/// spin (yielding the processor where ranks outnumber the processors they may use), then sleep on this rank's doorbell,
/// which others ring. Sleepers look up 50 times a second for a peer that died and for the deadline.
class ShmSync {
 public:
  ShmSync(const ShmGroup& group, std::string name, Nanoseconds timeout);

  void publish_arrival(std::uint64_t number) { publish(own_.arrived, number); }
  void publish_finish(std::uint64_t number) { publish(own_.finished, number); }
  bool everyone_arrived(std::uint64_t number) { return everyone(&RankControl::arrived, known_arrived_, number); }
  bool everyone_finished(std::uint64_t number) { return everyone(&RankControl::finished, known_finished_, number); }

  /// Block until it is so. Throw the group's failure; a peer that is lost or late becomes one.
  void wait_arrival(std::uint64_t number) { wait(&RankControl::arrived, known_arrived_, number); }
  void wait_finish(std::uint64_t number) { wait(&RankControl::finished, known_finished_, number); }

  /// Throws the group's failure, if there is one.
  void check() const;
  /// Makes `cause` the group's failure, unless it has one, and wakes everyone. From any thread.
  void fail(const Error& cause) noexcept;
  /// fail(), then throws the group's failure, which is another one if another rank was first.
  [[noreturn]] void fail_and_throw(const Error& cause);

  /// Tells the others that this rank will enter no further operation.
  void leave() noexcept;

 private:
  using Counter = std::atomic<std::uint64_t> RankControl::*;

  void publish(std::atomic<std::uint64_t>& counter, std::uint64_t number);
  bool everyone(Counter counter, std::uint64_t& known, std::uint64_t number);
  void wait(Counter counter, std::uint64_t& known, std::uint64_t number);
  bool spin(Counter counter, std::uint64_t& known, std::uint64_t number);
  void look_for_lost_peers(Counter counter, std::uint64_t number);
  [[noreturn]] void time_out(Counter counter, std::uint64_t number);
  std::string where_is(int rank) const;

  const ShmGroup& group_;
  const std::string name_;
  const Nanoseconds timeout_;
  const bool oversubscribed_;
  RankControl& own_;
  std::uint64_t known_arrived_ = 0, known_finished_ = 0;  // everyone is at least there
};

}  // namespace paceline
