#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "paceline/comm/message/collectives.h"

namespace paceline {

/// Collectives over messages. Operations are carried out in order by whichever thread is there: the caller's while it
/// waits, otherwise one of the engine's own, so that they overlap with what the caller does meanwhile.
class MessageEngine final : public Engine {
 public:
  /// `preferred` as MessageCollectives has it. With `hosts`, memory is that of this host's group.
  MessageEngine(std::unique_ptr<Transport> transport, Nanoseconds timeout, Algorithm preferred = Algorithm::Auto,
                std::unique_ptr<HostGroup> hosts = nullptr);
  /// Operations that are not complete fail, on all ranks.
  ~MessageEngine() override;

  const char* name() const override { return hosts_ == nullptr ? transport_->name() : "hosts"; }
  Buffer allocate(std::size_t bytes) override;
  bool reaches_all() const override { return hosts_ == nullptr; }
  bool reaches(const void* data, std::size_t bytes) const override {
    return hosts_ == nullptr || hosts_->memory->reaches(data, bytes);
  }
  Algorithm algorithm(const Operation& operation) const override { return collectives_.algorithm(operation); }
  std::uint64_t start(const Operation& operation, Algorithm chosen) override;
  std::uint64_t run(const Operation& operation, Algorithm chosen) override;
  bool test(std::uint64_t operation) override;
  void wait(std::uint64_t operation) override;
  std::size_t carried_out(std::uint64_t operation) const override;
  OperationTiming timing(std::uint64_t operation) const override;
  std::vector<LinkInfo> links() const override { return transport_->links(); }
  void check() const override { transport_->check(); }
  void abort(const Error& cause) noexcept override { transport_->fail(cause); }

 private:
  static constexpr std::uint64_t kOutstanding = 64;
  struct Slot {
    Operation operation;
    Algorithm chosen{};
    std::size_t carried_out = 0;
    OperationTiming timing{};
  };
  using Lock = std::unique_lock<std::mutex>;

  Slot& slot(std::uint64_t number) { return slots_[number % slots_.size()]; }
  const Slot& slot(std::uint64_t number) const { return slots_[number % slots_.size()]; }
  std::uint64_t enqueue(const Operation& operation, Algorithm chosen, Lock& lock);
  void wait(std::uint64_t operation, Lock& lock);
  void run_next(Lock& lock, Nanoseconds spin);
  void run_behind();

  const std::unique_ptr<Transport> transport_;
  const std::unique_ptr<HostGroup> hosts_;
  const Nanoseconds timeout_;
  MessageCollectives collectives_;  // used by one thread at a time, the busy one

  mutable std::mutex mutex_;
  std::condition_variable work_, done_;  // for the engine's thread, and for waiting callers
  // Guarded by mutex_.
  std::uint64_t started_ = 0, completed_ = 0;
  bool busy_ = false;     // a thread carries out completed_ + 1
  bool waiting_ = false;  // the caller does, or will
  bool stopping_ = false;
  std::optional<Error> failure_;
  std::array<Slot, 2 * kOutstanding> slots_;

  std::thread thread_;
};

}  // namespace paceline
