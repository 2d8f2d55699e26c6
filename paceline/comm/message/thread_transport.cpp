#include "paceline/comm/message/thread_transport.h"

#include <fmt/format.h>

#include <algorithm>

namespace paceline {
namespace {

Error late(int rank, int peer) {
  return Error(ErrorCode::Timeout, fmt::format("rank {} waited for rank {} until the time limit", rank, peer), rank,
               peer);
}

Error unexpected(int rank, int peer, std::size_t bytes, std::size_t due) {
  return Error(ErrorCode::Corrupt, fmt::format("rank {} sent {} bytes where {} were due", peer, bytes, due), rank,
               peer);
}

}  // namespace

ThreadTransport::ThreadTransport(std::shared_ptr<MessageHub> hub, int rank)
    : hub_(std::move(hub)), rank_(rank), calls_(static_cast<std::size_t>(hub_->world_size())) {}

void ThreadTransport::enter(const Call& call, std::span<const EagerPayload> eager_payloads,
                            const WaitPolicy& wait_policy) {
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank_) continue;
    const EagerPayload& eager_payload = eager_payloads[static_cast<std::size_t>(peer)];
    ThreadMessage message{.call = call, .data = {}};
    message.call->message_bytes = eager_payload.message.size();
    if (eager_payload.eager) message.data.assign(eager_payload.message.begin(), eager_payload.message.end());
    hub_->send(rank_, peer, std::move(message));
  }
  calls_[static_cast<std::size_t>(rank_)].call = call;
  const Deadline deadline(wait_policy.timeout);
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank_) continue;
    ThreadMessage message = wait_for(peer, deadline);
    if (!message.call) throw unexpected(rank_, peer, message.data.size(), 0);
    calls_[static_cast<std::size_t>(peer)] = std::move(message);
  }
}

ThreadMessage ThreadTransport::wait_for(int peer, Deadline deadline) {
  for (;;) {
    const auto began = hub_->moment();
    if (auto message = hub_->receive(peer, rank_)) return std::move(*message);
    if (deadline.passed()) throw late(rank_, peer);
    hub_->wait(rank_, began, deadline.left());
  }
}

void ThreadTransport::run(Schedule& schedule, const WaitPolicy& wait_policy) {
  Deadline deadline(wait_policy.timeout);
  while (!schedule.finished()) {
    const auto began = hub_->moment();
    bool moved = false;
    int waits_for = rank_;
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank_) continue;
      for (auto segment = schedule.next_outgoing(peer); !segment.empty(); segment = schedule.next_outgoing(peer)) {
        hub_->send(rank_, peer, {.call = {}, .data = {segment.begin(), segment.end()}});
        schedule.sent(peer);
        moved = true;
      }
      while (receive_segment(schedule, peer)) moved = true;
      if (!schedule.next_incoming(peer).empty()) waits_for = peer;
    }
    if (moved) {
      deadline = Deadline(wait_policy.timeout);
      continue;
    }
    if (deadline.passed()) throw late(rank_, waits_for);
    hub_->wait(rank_, began, deadline.left());
  }
}

bool ThreadTransport::receive_segment(Schedule& schedule, int peer) {
  const auto to = schedule.next_incoming(peer);
  if (to.empty()) return false;
  const auto message = hub_->receive(peer, rank_);
  if (!message) return false;
  if (message->call || message->data.size() != to.size())
    throw unexpected(rank_, peer, message->data.size(), to.size());
  std::copy(message->data.begin(), message->data.end(), to.begin());
  schedule.arrived(peer);
  return true;
}

MessageHub::MessageHub(int world_size, std::shared_ptr<MessageFaults> faults)
    : world_size_(world_size),
      faults_(std::move(faults)),
      lanes_(static_cast<std::size_t>(world_size) * static_cast<std::size_t>(world_size)),
      left_(static_cast<std::size_t>(world_size)) {}

void MessageHub::send(int sender, int receiver, ThreadMessage message) {
  std::lock_guard lock(mutex_);
  throw_failure(sender);
  Lane& out = lane(sender, receiver);
  const MessageFate fate = faults_ ? faults_->decide(sender, receiver, out.sent) : MessageFate{};
  ++out.sent;
  if (fate.cut) out.cut = lane(receiver, sender).cut = true;
  ring();
  if (out.cut) {
    throw Error(Fault::ConnectionLost, fmt::format("rank {} lost its connection to rank {}", sender, receiver), sender,
                receiver, Cause::Consequence);
  }
  if (fate.dropped) return;
  message.due = now() + fate.delay;
  out.messages.push_back(std::move(message));
}

std::optional<ThreadMessage> MessageHub::receive(int sender, int receiver) {
  std::lock_guard lock(mutex_);
  throw_failure(receiver);
  Lane& in = lane(sender, receiver);
  if (in.messages.empty() && (in.cut || left_[sender])) {
    throw Error(in.cut ? Fault::ConnectionLost : Fault::PeerLeft,
                fmt::format("rank {} {}, while rank {} waits for it", sender,
                            in.cut ? "lost its connection" : "ended its communicator", receiver),
                receiver, sender, Cause::Consequence);
  }
  if (in.messages.empty() || in.messages.front().due > now()) return std::nullopt;
  ThreadMessage message = std::move(in.messages.front());
  in.messages.pop_front();
  return message;
}

MessageHub::Moment MessageHub::moment() {
  std::lock_guard lock(mutex_);
  return {changes_, now()};
}

void MessageHub::wait(int rank, Moment since, Nanoseconds at_most) {
  std::unique_lock lock(mutex_);
  for (int sender = 0; sender < world_size_; ++sender) {
    const Lane& in = lane(sender, rank);
    if (in.messages.empty() || in.messages.front().due <= since.time) continue;
    at_most = std::min(at_most, std::max(Nanoseconds(1), in.messages.front().due - now()));
  }
  changed_.wait_for(lock, at_most, [&] { return changes_ != since.changes; });
}

void MessageHub::check(int rank) {
  std::lock_guard lock(mutex_);
  throw_failure(rank);
}

void MessageHub::throw_failure(int rank) const {
  if (failure_) throw failure_->heard_by(rank);
}

void MessageHub::fail(const Error& cause) noexcept {
  std::lock_guard lock(mutex_);
  if (!failure_) failure_ = cause;
  ring();
}

void MessageHub::leave(int rank) noexcept {
  std::lock_guard lock(mutex_);
  left_[rank] = true;
  ring();
}

void MessageHub::ring() noexcept {
  ++changes_;
  changed_.notify_all();
}

}  // namespace paceline
