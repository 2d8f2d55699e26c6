#pragma once

#include <array>
#include <memory>
#include <string>

#include "paceline/comm/engine.h"
#include "paceline/comm/shm_collectives.h"
#include "paceline/comm/shm_sync.h"

namespace paceline {

/// Collectives among ranks that share memory. Has no thread of its own: a rank does its share of an operation in
/// whichever call first finds that all ranks have entered it, be it the start of a later one.
class ShmEngine final : public Engine {
 public:
  /// `name` is the communicator's, for messages. `timeout` as CommOptions has it.
  ShmEngine(ShmGroup group, std::string name, Nanoseconds timeout);
  ~ShmEngine() override;

  const char* name() const override { return "shm"; }
  Buffer allocate(std::size_t bytes) override;
  bool reaches_all() const override { return false; }
  bool reaches(const void* data, std::size_t bytes) const override;
  bool takes_any_memory(const Operation&) const override { return false; }
  Algorithm algorithm(const Operation&) const override { return Algorithm::Auto; }
  std::size_t carried_out(std::uint64_t) const override { return 0; }
  std::uint64_t start(const Operation& operation) override;
  bool test(std::uint64_t operation) override;
  void wait(std::uint64_t operation) override;
  OperationTiming timing(std::uint64_t operation) const override;
  void check() const override { sync_.check(); }
  void abort(const Error& cause) noexcept override { sync_.fail(cause); }

 private:
  struct Memory;  // a segment and its heap, which buffers keep alive

  void enter(const Operation& operation);
  void advance();
  void check_agreement(std::uint64_t number);
  void note_completions();

  ShmGroup group_;
  ShmSync sync_;
  ShmCollectives collectives_;
  std::shared_ptr<Memory> memory_;

  // Numbers of the last operation that this rank entered, did its share of, and knows to be complete.
  std::uint64_t entered_ = 0, shared_ = 0, completed_ = 0;
  std::array<Operation, RankControl::kSlots> operations_;
  std::array<OperationTiming, RankControl::kSlots> timings_{};
};

}  // namespace paceline
