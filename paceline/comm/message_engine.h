#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "paceline/comm/message_collectives.h"

namespace paceline {

/// Collectives over messages. One thread of its own carries operations out, in order, so that they overlap with what
/// the caller does meanwhile.
class MessageEngine final : public Engine {
 public:
  MessageEngine(std::unique_ptr<Transport> transport, Nanoseconds timeout);
  /// Operations that are not complete fail, on all ranks.
  ~MessageEngine() override;

  const char* name() const override { return "messages"; }
  Buffer allocate(std::size_t bytes) override;
  bool reaches_all() const override { return true; }
  bool reaches(const void*, std::size_t) const override { return true; }
  Algorithm algorithm(const Operation& operation) const override;
  std::uint64_t start(const Operation& operation, Algorithm chosen) override;
  bool test(std::uint64_t operation) override;
  void wait(std::uint64_t operation) override;
  std::size_t carried_out(std::uint64_t operation) const override;
  OperationTiming timing(std::uint64_t operation) const override;
  void check() const override { transport_->check(); }
  void abort(const Error& cause) noexcept override { transport_->fail(cause); }

 private:
  void run();

  const std::unique_ptr<Transport> transport_;
  const Nanoseconds timeout_;
  MessageCollectives collectives_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<Operation> queue_;
  std::uint64_t started_ = 0, completed_ = 0;
  bool stopping_ = false;
  std::optional<Error> failure_;
  std::array<OperationTiming, 128> timings_{};
  std::array<std::size_t, 128> counts_{};

  std::thread thread_;
};

}  // namespace paceline
