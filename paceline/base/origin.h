#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace paceline {

/// Remembers which process made an object. A child that fork() makes has a copy of the object, but neither its threads
/// nor its place among the ranks: there, operations are refused and destructors leave alone what is the parent's.
class Origin {
 public:
  Origin();
  /// False in a child that was forked after this was made. Costs a load.
  bool here() const { return made_at_ == forks_.load(std::memory_order_relaxed); }

 private:
  static std::atomic<std::uint32_t> forks_;  // between the first of these processes and this one
  std::uint32_t made_at_;
};

/// Never destroys `object`, whose threads are the parent's: to join them, or to destroy what they wait for, takes for
/// ever.
void never_destroy(std::shared_ptr<void> object);

}  // namespace paceline
