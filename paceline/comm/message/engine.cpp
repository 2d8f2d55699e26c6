#include "paceline/comm/message/engine.h"

#include <fmt/format.h>

#include <exception>

#include "paceline/base/background.h"

namespace paceline {
namespace {

// As in shared memory: longer than a peer that runs needs to arrive, shorter than what a sleep and a wake-up cost. The
// engine's own thread does not spin, as it would take the time from what runs meanwhile.
constexpr Nanoseconds kSpin = std::chrono::microseconds(50);

}  // namespace

MessageEngine::MessageEngine(std::unique_ptr<Transport> transport, Nanoseconds timeout, Algorithm preferred,
                             std::unique_ptr<HostGroup> hosts)
    : transport_(std::move(transport)),
      hosts_(std::move(hosts)),
      timeout_(timeout),
      collectives_(*transport_, preferred, hosts_.get()),
      thread_(background_thread([this] { run_behind(); })) {}

MessageEngine::~MessageEngine() {
  bool unfinished = false;
  {
    const Lock lock(mutex_);
    stopping_ = true;
    unfinished = started_ > completed_ && !failure_;
  }
  work_.notify_all();
  if (unfinished) {
    transport_->fail({ErrorCode::Aborted, "ended its communicator with operations outstanding", transport_->rank()});
  }
  thread_.join();
  transport_->leave();
}

Buffer MessageEngine::allocate(std::size_t bytes) {
  if (hosts_ != nullptr) return hosts_->memory->allocate(bytes);
  return allocate_on_heap(bytes);
}

std::uint64_t MessageEngine::start(const Operation& operation, Algorithm chosen) {
  Lock lock(mutex_);
  const std::uint64_t number = enqueue(operation, chosen, lock);
  if (!busy_) work_.notify_one();
  return number;
}

std::uint64_t MessageEngine::run(const Operation& operation, Algorithm chosen) {
  Lock lock(mutex_);
  const std::uint64_t number = enqueue(operation, chosen, lock);
  wait(number, lock);
  return number;
}

std::uint64_t MessageEngine::enqueue(const Operation& operation, Algorithm chosen, Lock& lock) {
  if (failure_) throw Error(*failure_);
  transport_->check();  // or it was aborted
  if (started_ - completed_ >= kOutstanding) wait(started_ + 1 - kOutstanding, lock);
  Slot& next = slot(++started_);
  next.operation = operation;
  next.chosen = chosen;
  next.timing = {};
  if (operation.timed) next.timing.launched = now();
  return started_;
}

bool MessageEngine::test(std::uint64_t operation) {
  const Lock lock(mutex_);
  if (completed_ < operation && failure_) throw Error(*failure_);
  return completed_ >= operation;
}

void MessageEngine::wait(std::uint64_t operation) {
  Lock lock(mutex_);
  wait(operation, lock);
}

void MessageEngine::wait(std::uint64_t operation, Lock& lock) {
  waiting_ = true;
  while (completed_ < operation && !failure_) {
    if (busy_) done_.wait(lock);
    else run_next(lock, kSpin);
  }
  waiting_ = false;
  if (completed_ < operation) throw Error(*failure_);
  if (started_ > completed_ && !failure_) work_.notify_one();
}

std::size_t MessageEngine::carried_out(std::uint64_t operation) const {
  const Lock lock(mutex_);
  return slot(operation).carried_out;
}

OperationTiming MessageEngine::timing(std::uint64_t operation) const {
  const Lock lock(mutex_);
  if (started_ - operation >= slots_.size() / 2) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("when operation #{} ran is no longer known: ask before {} more are started", operation,
                            slots_.size() / 2));
  }
  return slot(operation).timing;
}

void MessageEngine::run_behind() {
  Lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stopping_ || (started_ > completed_ && !busy_ && !waiting_ && !failure_); });
    if (stopping_) return;
    run_next(lock, Nanoseconds(0));
  }
}

void MessageEngine::run_next(Lock& lock, Nanoseconds spin) {
  const std::uint64_t number = completed_ + 1;
  Slot& current = slot(number);
  busy_ = true;
  lock.unlock();
  std::optional<Error> failure;
  MessageCollectives::Outcome outcome{};
  try {
    outcome = collectives_.run(current.operation, current.chosen, number, {timeout_, spin});
  } catch (const Error& error) {
    failure = error;
  } catch (const std::exception& error) {
    failure.emplace(ErrorCode::System, error.what(), transport_->rank());
  }
  if (failure) {
    // Another rank may have been first: what the group agrees on is thrown here too.
    transport_->fail(*failure);
    try {
      transport_->check();
    } catch (const Error& first) {
      failure = first;
    }
  }
  lock.lock();
  busy_ = false;
  if (failure) {
    failure_ = failure;
  } else {
    current.carried_out = outcome.carried_out;
    current.timing.last_arrival = outcome.last_arrival;
    if (current.operation.timed) current.timing.completed = now();
    completed_ = number;
  }
  if (waiting_ || failure_) done_.notify_all();
}

}  // namespace paceline
