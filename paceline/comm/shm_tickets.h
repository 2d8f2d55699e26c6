#pragma once

#include <cstdint>
#include <optional>

#include "paceline/comm/shm_view.h"

namespace paceline {

/// The chunks of one operation, given to whichever rank asks next: first those of its own slice, which its processor's
/// cache may hold, then what others have not taken. Lock-free, in shared memory.
class ShmTickets {
 public:
  ShmTickets(const ShmView& view, std::uint64_t number, std::uint32_t chunks)
      : view_(view), number_(number), tag_(number << 32), chunks_(chunks) {}

  /// A chunk of this rank's slice that nobody has.
  std::optional<std::uint32_t> take_own() { return take_from(view_.rank); }

  /// A chunk of any slice that nobody has; none when all are taken.
  std::optional<std::uint32_t> take_any() {
    const int world = view_.world_size();
    for (; slices_done_ < world; ++slices_done_) {
      if (const auto chunk = take_from((view_.rank + slices_done_) % world)) return chunk;
    }
    return std::nullopt;
  }

  /// A chunk that this rank took is done. True if it was the last of all.
  bool give_back() {
    std::atomic<std::uint64_t>& done = counters(0).done;
    std::uint64_t seen = done.load(std::memory_order_relaxed);
    while (!done.compare_exchange_weak(seen, tag_ | (of_this(seen) + 1), std::memory_order_seq_cst)) {
    }
    return of_this(seen) + 1 == chunks_;
  }

  bool all_done() const { return of_this(counters(0).done.load(std::memory_order_seq_cst)) >= chunks_; }

 private:
  std::optional<std::uint32_t> take_from(int owner) {
    const std::uint32_t begin = slice_begin(owner), size = slice_begin(owner + 1) - begin;
    std::atomic<std::uint64_t>& taken = counters(owner).taken;
    std::uint64_t seen = taken.load(std::memory_order_relaxed);
    while (of_this(seen) < size) {
      if (taken.compare_exchange_weak(seen, tag_ | (of_this(seen) + 1), std::memory_order_relaxed)) {
        return begin + static_cast<std::uint32_t>(of_this(seen));
      }
    }
    return std::nullopt;
  }

  std::uint32_t slice_begin(int rank) const {
    return static_cast<std::uint32_t>(std::uint64_t{chunks_} * static_cast<std::uint64_t>(rank) /
                                      static_cast<std::uint64_t>(view_.world_size()));
  }
  std::uint64_t of_this(std::uint64_t word) const { return (word ^ tag_) >> 32 == 0 ? word & UINT32_MAX : 0; }
  ChunkCounters& counters(int of) const { return view_.controls[of]->chunks[number_ % RankControl::kSlots]; }

  const ShmView& view_;
  const std::uint64_t number_, tag_;
  const std::uint32_t chunks_;
  int slices_done_ = 0;  // slices, from its own on, of which nothing is left
};

}  // namespace paceline
