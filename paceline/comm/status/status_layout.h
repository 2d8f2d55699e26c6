#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "paceline/base/exit_codes.h"
#include "paceline/comm/operation.h"

namespace paceline {

// What lies in a job status, in shared memory: the launcher's part, which workers cannot write, then a slot for each
// worker on this host, a page that only that worker writes. Whoever reads a slot trusts nothing in it (status_view.h).

/// One of a worker's last operations. `sequence` is 0 while it is filled in.
struct alignas(128) StatusOperation {
  /// A communicator's name or an operation's label; zero-padded, cut.
  using Name = std::array<std::atomic<std::uint64_t>, 3>;
  /// In place of a Collective: a communicator is being made; an operation that was started long ago.
  static constexpr std::uint8_t kJoin = 255, kUnknown = 254;

  std::atomic<std::uint64_t> sequence;   // 1 for the worker's first
  std::atomic<std::uint64_t> number;     // in its communicator
  std::atomic<std::uint64_t> count;      // elements
  std::atomic<std::uint64_t> what;       // kind, dtype, reduce, root, place of its communicator: StatusWriter::pack()
  std::atomic<std::int64_t> entered;     // CLOCK_MONOTONIC_COARSE, ns
  std::atomic<std::int64_t> waits_from;  // the worker's thread is in it since then; 0: it is not, or no longer
  std::atomic<std::int64_t> completed;   // 0: not yet; kFailed: it threw; kDone: it is, nobody looked when
  Name communicator, label;

  static constexpr std::int64_t kFailed = -1, kDone = 1;
};
static_assert(sizeof(StatusOperation) == 128);

/// A communicator that a worker is in.
struct StatusCommunicator {
  std::atomic<std::uint64_t> name;     // a hash of the whole of it; 0: nothing is here
  std::atomic<std::uint64_t> members;  // ranks
  std::atomic<std::uint64_t> entered;  // the number of the last operation that the worker has entered there
};

/// What one worker says. A page of its own, so that each worker can be given write access to its own only.
struct alignas(4096) StatusSlot {
  static constexpr std::uint64_t kOperations = 16, kCommunicators = 32;
  static constexpr std::uint32_t kExited = 256;

  std::atomic<std::int64_t> pid;
  std::atomic<std::uint64_t> users;      // communicators of Comm::from_env(); none: nobody beats
  std::atomic<std::uint64_t> heartbeat;  // advanced every StatusWriter::kBeat
  std::atomic<std::int64_t> beat_at;     // CLOCK_MONOTONIC, ns
  std::atomic<std::uint64_t> step;       // of training, 1 for the first; 0: unknown
  std::atomic<std::uint32_t> exited;     // kExited + the code, once the process has called exit()
  // 1: the list does not show all that it may wait for, since calls come from several threads, or its communicators are
  // too many, or two have one name.
  std::atomic<std::uint32_t> unclear;
  alignas(128) StatusOperation operations[kOperations];  // by sequence modulo kOperations
  StatusCommunicator communicators[kCommunicators];
};
static_assert(sizeof(StatusSlot) == 4096);

/// What the launcher says of a worker.
struct StatusWorker {
  std::atomic<std::int32_t> rank;
  std::atomic<std::int32_t> pid;
  std::atomic<std::int32_t> ended;  // 1 once it is reaped
};

/// The job's first failure as the launcher knows it.
struct StatusFailure {
  std::atomic<std::uint32_t> set;  // written last
  std::uint32_t fault;
  std::int32_t rank;
  std::int64_t at;  // CLOCK_MONOTONIC, ns
  char message[1600];
};

/// The beginning of the launcher's part.
struct alignas(4096) StatusHeader {
  static constexpr std::uint64_t kMagic = 0x32647261'6f625f70;
  static constexpr std::uint32_t kMostSlots = 1024;

  std::uint64_t magic;
  std::uint32_t slots;
  std::int32_t world_size;
  std::int32_t launcher;    // the process that the user started
  std::int32_t supervisor;  // the one that owns the workers
  std::int64_t started;     // CLOCK_MONOTONIC, ns
  char job[32];
  char host[64];
  char program[256];
  StatusFailure failure;
  StatusWorker workers[kMostSlots];
};
static_assert(sizeof(StatusHeader) % 4096 == 0);
static_assert(std::atomic<std::int64_t>::is_always_lock_free && std::atomic<std::int32_t>::is_always_lock_free);

}  // namespace paceline
