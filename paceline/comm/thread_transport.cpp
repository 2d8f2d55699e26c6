#include "paceline/comm/thread_transport.h"

#include <fmt/format.h>

#include <algorithm>

namespace paceline {

void ThreadTransport::exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                               Deadline deadline) {
  for (const Outgoing& message : outgoing) hub_->send(rank_, message.peer, message.data);
  for (const Incoming& message : incoming) hub_->receive(message.peer, rank_, message.data, deadline);
}

MessageHub::MessageHub(int world_size, std::shared_ptr<MessageFaults> faults)
    : world_size_(world_size),
      faults_(std::move(faults)),
      lanes_(static_cast<std::size_t>(world_size) * static_cast<std::size_t>(world_size)),
      left_(static_cast<std::size_t>(world_size)) {}

void MessageHub::send(int sender, int receiver, std::span<const std::byte> data) {
  std::lock_guard lock(mutex_);
  throw_failure(sender);
  Lane& out = lane(sender, receiver);
  const MessageFate fate = faults_ ? faults_->decide(sender, receiver, out.sent) : MessageFate{};
  ++out.sent;
  if (fate.cut) out.cut = lane(receiver, sender).cut = true;
  if (out.cut) {
    arrived_.notify_all();
    throw Error(ErrorCode::PeerLost, fmt::format("rank {} lost its connection to rank {}", sender, receiver), sender,
                receiver);
  }
  if (fate.dropped) return;
  out.messages.push_back({{data.begin(), data.end()}, now() + fate.delay});
  arrived_.notify_all();
}

void MessageHub::receive(int sender, int receiver, std::span<std::byte> data, Deadline deadline) {
  std::unique_lock lock(mutex_);
  Lane& in = lane(sender, receiver);
  for (;;) {
    throw_failure(receiver);
    Nanoseconds patience = deadline.left();
    if (!in.messages.empty()) {
      const Nanoseconds early = in.messages.front().due - now();
      if (early <= Nanoseconds::zero()) break;
      patience = std::min(patience, early);
    } else if (in.cut || left_[sender]) {
      throw Error(ErrorCode::PeerLost,
                  fmt::format("rank {} {}, while rank {} waits for it", sender,
                              in.cut ? "lost its connection" : "ended its communicator", receiver),
                  receiver, sender);
    }
    if (deadline.passed()) {
      throw Error(ErrorCode::Timeout, fmt::format("rank {} waited for rank {} until the time limit", receiver, sender),
                  receiver, sender);
    }
    arrived_.wait_for(lock, patience);
  }
  const Message message = std::move(in.messages.front());
  in.messages.pop_front();
  if (message.data.size() != data.size()) {
    throw Error(ErrorCode::Corrupt,
                fmt::format("rank {} sent {} bytes where {} were due", sender, message.data.size(), data.size()),
                receiver, sender);
  }
  std::copy(message.data.begin(), message.data.end(), data.begin());
}

void MessageHub::check(int rank) {
  std::lock_guard lock(mutex_);
  throw_failure(rank);
}

void MessageHub::throw_failure(int rank) const {
  if (!failure_) return;
  throw Error(failure_->code(), failure_->message(), rank,
              failure_->peer() != rank ? failure_->peer() : failure_->rank());
}

void MessageHub::fail(const Error& cause) noexcept {
  std::lock_guard lock(mutex_);
  if (!failure_) failure_ = cause;
  arrived_.notify_all();
}

void MessageHub::leave(int rank) noexcept {
  std::lock_guard lock(mutex_);
  left_[rank] = true;
  arrived_.notify_all();
}

}  // namespace paceline
