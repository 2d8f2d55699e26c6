#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "paceline/base/cpu.h"
#include "paceline/comm/signature.h"

namespace paceline {

// What ranks of a group tell each other in shared memory. Each rank's segment begins with its RankControl, which, but
// for the doorbell, the chunk counters and the failure record, only that rank writes.

/// What a rank publishes of one operation. `number` is written last: who sees it sees the rest. For the smallest
/// operations, all of it is one cache line.
struct alignas(128) Slot {
  static constexpr std::size_t kPayloadBytes = 1024;

  std::atomic<std::uint64_t> number;
  std::uint64_t digest;  // of the signature
  double weight;
  /// A one-shot operation's input; else where operands lie (ShmOperands).
  alignas(8) std::byte payload[kPayloadBytes];
};

/// What is only looked at when ranks differ, or for reports; apart, so that it stays in the writer's cache.
struct alignas(128) SlotDetails {
  Signature signature;
  std::int64_t arrived_ns;                // when the rank entered it; these only where it is timed
  std::atomic<std::int64_t> finished_ns;  // when the rank had done its share; peers may look earlier
};

/// How far an operation's chunks are: those of this rank's slice that someone has taken, and in rank 0's control, all
/// that are done. Set to zero by this rank when it enters the operation.
struct alignas(128) ChunkCounters {
  std::atomic<std::uint32_t> taken;
  alignas(64) std::atomic<std::uint32_t> done;
};

/// The first failure of a group; lives in rank 0's control.
struct FailureRecord {
  enum State : std::uint32_t { kNone, kWriting, kSet };
  std::atomic<std::uint32_t> state;
  std::int32_t fault, rank, peer, cause;
  char message[2028];
};

struct RankControl {
  /// Operations that a rank may have launched and not completed; `slots` is twice as long so that a slot that others
  /// may still read is never written.
  static constexpr std::uint64_t kOutstanding = 64;
  static constexpr std::uint64_t kSlots = 2 * kOutstanding;
  static constexpr std::uint64_t kMagic = 0x70616365'6c696e66;

  std::uint64_t magic;
  std::uint64_t nonce;  // read back through the mapping: proof that it is the same memory
  std::int64_t pid;
  CpuAllowance cpus;
  alignas(128) std::atomic<std::uint64_t> arrived;   // the last operation this rank has entered
  alignas(128) std::atomic<std::uint64_t> finished;  // the last operation whose share it has done
  alignas(128) std::atomic<std::uint32_t> doorbell;  // rung by others while `sleeping`
  std::atomic<std::uint32_t> sleeping;
  std::atomic<std::uint32_t> left;  // ended its communicator in good order
  alignas(128) FailureRecord failure;
  ChunkCounters chunks[kSlots];
  SlotDetails details[kSlots];
  Slot slots[kSlots];

  Slot& slot(std::uint64_t number) { return slots[number % kSlots]; }
  SlotDetails& details_of(std::uint64_t number) { return details[number % kSlots]; }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace paceline
