#pragma once

#include <cstdint>
#include <optional>

#include "paceline/comm/shm/view.h"

namespace paceline {

/// The chunks of one operation, given to whichever rank asks next: first those of its own slice, which its processor's
/// cache may hold, then what others have not taken. Lock-free, in shared memory.
class ChunkQueue {
 public:
  ChunkQueue(const ShmView& view, std::uint64_t number, std::uint32_t chunks)
      : view_(view), number_(number), chunks_(chunks) {}

  /// A rank does this to its own counters before it enters the operation. Nobody uses them any more for the one that
  /// had them before.
  static void prepare(RankControl& own, std::uint64_t number) {
    own.chunks[number % RankControl::kSlots].taken.store(0, std::memory_order_relaxed);
    own.chunks[number % RankControl::kSlots].done.store(0, std::memory_order_relaxed);
  }

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
  bool give_back() { return counters(0).done.fetch_add(1, std::memory_order_seq_cst) + 1 == chunks_; }

  bool all_done() const { return counters(0).done.load(std::memory_order_seq_cst) >= chunks_; }

 private:
  std::optional<std::uint32_t> take_from(int owner) {
    const std::uint32_t begin = slice_begin(owner), size = slice_begin(owner + 1) - begin;
    std::atomic<std::uint32_t>& taken = counters(owner).taken;
    std::uint32_t seen = taken.load(std::memory_order_relaxed);
    while (seen < size) {
      if (taken.compare_exchange_weak(seen, seen + 1, std::memory_order_relaxed)) return begin + seen;
    }
    return std::nullopt;
  }

  std::uint32_t slice_begin(int rank) const {
    return static_cast<std::uint32_t>(std::uint64_t{chunks_} * static_cast<std::uint64_t>(rank) /
                                      static_cast<std::uint64_t>(view_.world_size()));
  }
  ChunkCounters& counters(int of) const { return view_.controls[of]->chunks[number_ % RankControl::kSlots]; }

  const ShmView& view_;
  const std::uint64_t number_;
  const std::uint32_t chunks_;
  int slices_done_ = 0;  // slices, from its own on, of which nothing is left
};

}  // namespace paceline
