#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "paceline/comm/signature.h"

namespace paceline {

// What ranks of a group tell each other in shared memory. Each rank's segment begins with its RankControl, which, but
// for the doorbell and the failure record, only that rank writes.

/// One operation of one rank.
struct alignas(64) Slot {
  static constexpr std::size_t kInlineBytes = 256;
  static constexpr std::uint64_t kInline = UINT64_MAX;

  Signature signature;
  std::uint64_t in_offset;  // of this rank's input, from the beginning of its segment; or kInline
  double weight;
  std::int64_t arrived_ns;   // when the rank entered it
  std::int64_t finished_ns;  // when the rank had done its share
  std::uint64_t unused[4];
  std::byte payload[kInlineBytes];  // small inputs ride here
};
static_assert(std::is_trivially_copyable_v<Slot>);

/// The first failure of a group; lives in rank 0's control.
struct FailureRecord {
  enum State : std::uint32_t { kNone, kWriting, kSet };
  std::atomic<std::uint32_t> state;
  std::int32_t code, rank, peer;
  char message[1008];
};

struct RankControl {
  /// Operations that a rank may have launched and not completed; `slots` is twice as long so that a slot that others
  /// may still read is never written.
  static constexpr std::uint64_t kOutstanding = 64;
  static constexpr std::uint64_t kSlots = 2 * kOutstanding;
  static constexpr std::uint64_t kMagic = 0x70616365'6c696e65;

  std::uint64_t magic;
  std::uint64_t nonce;  // read back through the mapping: proof that it is the same memory
  std::int64_t pid;
  alignas(128) std::atomic<std::uint64_t> arrived;   // the last operation this rank has entered
  alignas(128) std::atomic<std::uint64_t> finished;  // the last operation whose share it has done
  alignas(128) std::atomic<std::uint32_t> doorbell;  // rung by others while `sleeping`
  std::atomic<std::uint32_t> sleeping;
  std::atomic<std::uint32_t> left;  // ended its communicator in good order
  alignas(128) FailureRecord failure;
  alignas(128) Slot slots[kSlots];

  Slot& slot(std::uint64_t number) { return slots[number % kSlots]; }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace paceline
