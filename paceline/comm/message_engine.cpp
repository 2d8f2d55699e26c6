#include "paceline/comm/message_engine.h"

#include <fmt/format.h>

#include <exception>

namespace paceline {

MessageEngine::MessageEngine(std::unique_ptr<Transport> transport, Nanoseconds timeout)
    : transport_(std::move(transport)), timeout_(timeout), collectives_(*transport_), thread_([this] { run(); }) {}

MessageEngine::~MessageEngine() {
  bool unfinished = false;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    unfinished = started_ > completed_ && !failure_;
  }
  changed_.notify_all();
  if (unfinished) {
    transport_->fail({ErrorCode::Aborted, "ended its communicator with operations outstanding", transport_->rank()});
  }
  transport_->leave();
  thread_.join();
}

Buffer MessageEngine::allocate(std::size_t bytes) { return allocate_on_heap(bytes); }

Algorithm MessageEngine::algorithm(const Operation& operation) const {
  if (operation.algorithm == Algorithm::Auto || operation.algorithm == Algorithm::Direct) return Algorithm::Direct;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("there is no algorithm {} over messages; it has direct", to_string(operation.algorithm)));
}

std::uint64_t MessageEngine::start(const Operation& operation, Algorithm) {
  std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_);
  queue_.push_back(operation);
  counts_[(started_ + 1) % counts_.size()] = operation.count;
  timings_[(started_ + 1) % timings_.size()].launched = now();
  changed_.notify_all();
  return ++started_;
}

bool MessageEngine::test(std::uint64_t operation) {
  std::lock_guard lock(mutex_);
  if (completed_ < operation && failure_) throw Error(*failure_);
  return completed_ >= operation;
}

void MessageEngine::wait(std::uint64_t operation) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return completed_ >= operation || failure_; });
  if (completed_ < operation) throw Error(*failure_);
}

std::size_t MessageEngine::carried_out(std::uint64_t operation) const {
  std::lock_guard lock(mutex_);
  return counts_[operation % counts_.size()];
}

OperationTiming MessageEngine::timing(std::uint64_t operation) const {
  std::lock_guard lock(mutex_);
  if (started_ - operation >= timings_.size() / 2) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("when operation #{} ran is no longer known: ask before {} more are started", operation,
                            timings_.size() / 2));
  }
  return timings_[operation % timings_.size()];
}

void MessageEngine::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const Operation operation = queue_.front();
    queue_.pop_front();
    const std::uint64_t number = completed_ + 1;
    OperationTiming& timing = timings_[number % timings_.size()];
    lock.unlock();
    std::optional<Error> failure;
    Nanoseconds last_arrival{};
    try {
      last_arrival = collectives_.carry_out(operation, number, Deadline(timeout_));
    } catch (const Error& error) {
      failure = error;
    } catch (const std::exception& error) {
      failure.emplace(ErrorCode::System, error.what(), transport_->rank());
    }
    if (failure) transport_->fail(*failure);
    lock.lock();
    if (failure) {
      failure_ = failure;
      changed_.notify_all();
      return;
    }
    timing.last_arrival = last_arrival;
    timing.completed = now();
    completed_ = number;
    changed_.notify_all();
  }
}

}  // namespace paceline
