#pragma once

#include <time.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include "paceline/base/clock.h"
#include "paceline/base/origin.h"
#include "paceline/comm/status/job_status.h"

namespace paceline {

/// A name in the job status's form, and where among the worker's communicators the one of that name is.
struct StatusName {
  static constexpr std::size_t kNowhere = StatusSlot::kCommunicators;

  std::array<std::uint64_t, 3> words{};
  std::size_t place = kNowhere;
};
StatusName status_name(std::string_view name);

/// Writes a worker's page of the job status: a heartbeat, from a thread of its own, and its last operations, a flight
/// recorder that is still there when the worker has died.
/// One for all communicators of a process, whose calls come from one thread at a time; if they come from several at
/// once, operations may be missing from the list.
class StatusWriter {
 public:
  static constexpr Nanoseconds kBeat = std::chrono::milliseconds(500);
  static constexpr std::size_t kFew = 1024;

  /// Throws System when there is no thread to be had.
  StatusWriter(std::shared_ptr<JobStatus> job_status, int slot);
  ~StatusWriter();
  StatusWriter(const StatusWriter&) = delete;
  StatusWriter& operator=(const StatusWriter&) = delete;

  const std::shared_ptr<JobStatus>& job_status() const { return job_status_; }
  const Origin& origin() const { return origin_; }

  /// This worker is in the communicator of this name, of so many ranks, until leave().
  StatusName join(std::string_view name, int members);
  void leave(const StatusName& communicator);

  /// Enters an operation, in which this thread is from now on; its sequence number.
  std::uint64_t enter(const Operation& operation, std::uint64_t number, const StatusName& communicator) {
    return put(pack(operation), operation.count, number, communicator, operation.label);
  }
  /// Enters the making of a communicator.
  std::uint64_t enter_join(const StatusName& communicator) {
    return put(StatusOperation::kJoin, 0, 0, communicator, "");
  }
  /// The operation goes on without this thread.
  void go_on(std::uint64_t sequence) { set(sequence, &StatusOperation::waits_from, 0); }
  /// This thread waits for an operation that it had let go on; its sequence number, which is a new one if it was too
  /// long ago.
  std::uint64_t wait_for(std::uint64_t sequence, std::uint64_t number, const StatusName& communicator);
  /// `elements` of it: where there are few, a look at the clock would take longer than it is worth.
  void complete(std::uint64_t sequence, std::size_t elements) {
    set(sequence, &StatusOperation::completed, elements < kFew ? StatusOperation::kDone : clock());
  }
  void fail(std::uint64_t sequence) { set(sequence, &StatusOperation::completed, StatusOperation::kFailed); }

  void set_step(std::uint64_t step) { slot_.step.store(step, std::memory_order_relaxed); }

  /// As it stands in StatusOperation::what.
  static std::uint64_t pack(const Operation& operation) {
    return static_cast<std::uint64_t>(operation.kind) | static_cast<std::uint64_t>(operation.dtype) << 8 |
           static_cast<std::uint64_t>(operation.reduce) << 16 |
           static_cast<std::uint64_t>(static_cast<std::uint16_t>(operation.root)) << 32;
  }

 private:
  // Cheaper than the exact clock, and late by a tick of the kernel's at most.
  static std::int64_t clock() {
    timespec at{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &at);
    return at.tv_sec * 1'000'000'000 + at.tv_nsec;
  }
  StatusOperation& entry(std::uint64_t sequence) { return slot_.operations[sequence % StatusSlot::kOperations]; }
  void set(std::uint64_t sequence, std::atomic<std::int64_t> StatusOperation::*field, std::int64_t value) {
    StatusOperation& operation = entry(sequence);
    if (operation.sequence.load(std::memory_order_relaxed) == sequence) {
      (operation.*field).store(value, std::memory_order_relaxed);
    }
  }
  std::uint64_t put(std::uint64_t what, std::uint64_t count, std::uint64_t number, const StatusName& communicator,
                    const char* label);
  void note_thread() {
    static thread_local char here;
    const char* const last = thread_seen_.load(std::memory_order_relaxed);
    if (last == &here) return;
    thread_seen_.store(&here, std::memory_order_relaxed);
    if (last != nullptr) slot_.unclear.store(1, std::memory_order_relaxed);
  }
  void beat();

  /// The thread and what it waits for.
  struct Beat {
    std::mutex mutex;
    std::condition_variable stop;
    bool stopping = false;
    std::thread thread;
  };

  const std::shared_ptr<JobStatus> job_status_;
  StatusSlot& slot_;
  const Origin origin_ = {};
  std::atomic<std::uint64_t> last_;
  std::atomic<const char*> thread_seen_ = nullptr;  // the last that called
  std::unique_ptr<Beat> beat_ = std::make_unique<Beat>();
};

inline std::uint64_t StatusWriter::put(std::uint64_t what, std::uint64_t count, std::uint64_t number,
                                       const StatusName& communicator, const char* label) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  note_thread();
  const std::uint64_t sequence = last_.load(kRelaxed) + 1;
  last_.store(sequence, kRelaxed);
  StatusOperation& operation = entry(sequence);
  operation.sequence.store(0, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  operation.number.store(number, kRelaxed);
  operation.count.store(count, kRelaxed);
  operation.what.store(what | (communicator.place + 1) << 24, kRelaxed);
  const std::int64_t at = clock();
  operation.entered.store(at, kRelaxed);
  operation.waits_from.store(at, kRelaxed);
  operation.completed.store(0, kRelaxed);
  std::array<std::uint64_t, 3> words{};
  if (label[0] != '\0') words = status_name(label).words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    operation.communicator[i].store(communicator.words[i], kRelaxed);
    operation.label[i].store(words[i], kRelaxed);
  }
  operation.sequence.store(sequence, std::memory_order_release);
  if (communicator.place < StatusSlot::kCommunicators) {
    std::atomic<std::uint64_t>& entered = slot_.communicators[communicator.place].entered;
    if (number > entered.load(kRelaxed)) entered.store(number, kRelaxed);
  }
  return sequence;
}

}  // namespace paceline
