#pragma once

#include <cstdint>
#include <optional>

#include "paceline/comm/shm_control.h"

namespace paceline {

/// The chunks of one operation, given to whichever rank asks next. Lock-free, in shared memory.
class ShmTickets {
 public:
  ShmTickets(RankControl& rank_0, std::uint64_t number, std::uint32_t chunks)
      : counters_(rank_0.chunks[number % RankControl::kSlots]), tag_(number << 32), chunks_(chunks) {}

  /// The next chunk that nobody has; none when all are taken.
  std::optional<std::uint32_t> take() {
    std::uint64_t seen = counters_.taken.load(std::memory_order_relaxed);
    for (;;) {
      const std::uint64_t next = mine(seen);
      if (next >= chunks_) return std::nullopt;
      if (counters_.taken.compare_exchange_weak(seen, tag_ | (next + 1), std::memory_order_relaxed)) {
        return static_cast<std::uint32_t>(next);
      }
    }
  }

  /// This many of the chunks that this rank took are done. True if they were the last.
  bool give_back(std::uint32_t chunks) {
    std::uint64_t seen = counters_.done.load(std::memory_order_relaxed);
    while (!counters_.done.compare_exchange_weak(seen, tag_ | (mine(seen) + chunks), std::memory_order_seq_cst)) {
    }
    return mine(seen) + chunks == chunks_;
  }

  bool all_done() const { return mine(counters_.done.load(std::memory_order_seq_cst)) >= chunks_; }

 private:
  std::uint64_t mine(std::uint64_t word) const { return (word ^ tag_) >> 32 == 0 ? word & UINT32_MAX : 0; }

  ChunkCounters& counters_;
  const std::uint64_t tag_;
  const std::uint32_t chunks_;
};

}  // namespace paceline
