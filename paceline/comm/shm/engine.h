#pragma once

#include <array>
#include <memory>
#include <string>

#include "paceline/comm/engine.h"
#include "paceline/comm/shm/chunk_queue.h"
#include "paceline/comm/shm/direct.h"
#include "paceline/comm/shm/one_shot.h"
#include "paceline/comm/shm/sync.h"

namespace paceline {

/// Collectives among ranks that share memory. Has no thread of its own: a rank does its share of an operation in
/// whichever call first finds that all ranks have entered it, be it the start of a later one.
class ShmEngine final : public Engine {
 public:
  /// `name` is the communicator's, for messages. `timeout` and `job_status` as CommOptions has them.
  ShmEngine(ShmGroup group, std::string name, Nanoseconds timeout,
            std::shared_ptr<const JobStatus> job_status = nullptr);
  ~ShmEngine() override;

  const char* name() const override { return "shm"; }
  Buffer allocate(std::size_t bytes) override;
  bool reaches_all() const override { return false; }
  bool reaches(const void* data, std::size_t bytes) const override;
  Algorithm algorithm(const Operation& operation) const override;
  std::uint64_t offset_of(const std::byte* memory) const override {
    return view_.segments[view_.rank]->offset_of(memory).value_or(0);
  }
  std::byte* at_peer(int rank, std::uint64_t offset, std::size_t bytes) const override {
    const Segment& segment = *view_.segments[static_cast<std::size_t>(rank)];
    return segment.has(offset, bytes) ? segment.at(offset) : nullptr;
  }
  std::uint64_t start(const Operation& operation, Algorithm chosen) override;
  bool test(std::uint64_t operation) override;
  void wait(std::uint64_t operation) override;
  std::size_t carried_out(std::uint64_t operation) const override;
  OperationTiming timing(std::uint64_t operation) const override;
  void check() const override { sync_.check(); }
  void abort(const Error& cause) noexcept override { sync_.fail(cause); }

 private:
  struct Memory;  // a segment and its heap, which buffers keep alive
  struct Entered {
    Operation operation;
    Algorithm algorithm;
    std::size_t carried_out;  // once its share was begun
    std::uint64_t digest;
    Nanoseconds working;  // of a timed operation: what its share took
  };
  /// Whether a rank does all it can of an operation at once, or leaves some to ranks that come later.
  enum class Share { All, Fair };

  void enter(const Operation& operation, Algorithm algorithm);
  void advance(Share share);
  void check_agreement(std::uint64_t number);
  [[noreturn]] void fail_for_mismatch(std::uint64_t number);
  void fail_for_counts(std::uint64_t number);
  bool do_timed_share(std::uint64_t number, Share share);
  bool do_share(std::uint64_t number, Share share);
  bool take_chunks(std::uint64_t number, Share share);
  ChunkQueue chunk_queue(std::uint64_t number) const;
  bool is_complete(std::uint64_t number);
  void note_completions();

  const Entered& entered(std::uint64_t number) const { return entered_operations_[number % RankControl::kSlots]; }
  Entered& entered(std::uint64_t number) { return entered_operations_[number % RankControl::kSlots]; }

  ShmGroup group_;
  ShmView view_;
  ShmSync sync_;
  ShmOneShot one_shot_;
  ShmDirect direct_;
  std::shared_ptr<Memory> memory_;

  // Numbers of the last operation that this rank entered, did its share of, and knows to be complete.
  std::uint64_t entered_ = 0, shared_ = 0, completed_ = 0;
  std::array<Entered, RankControl::kSlots> entered_operations_;
};

}  // namespace paceline
