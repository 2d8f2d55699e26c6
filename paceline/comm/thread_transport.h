#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "paceline/comm/message_faults.h"
#include "paceline/comm/transport.h"

namespace paceline {

/// Where the messages of a group of threads wait for their receivers.
class MessageHub {
 public:
  MessageHub(int world_size, std::shared_ptr<MessageFaults> faults);

  int world_size() const { return world_size_; }
  void send(int sender, int receiver, std::span<const std::byte> data);
  void receive(int sender, int receiver, std::span<std::byte> data, Deadline deadline);
  void fail(const Error& cause) noexcept;
  void check(int rank);
  void leave(int rank) noexcept;

 private:
  struct Message {
    std::vector<std::byte> data;
    Nanoseconds due;
  };
  struct Lane {
    std::deque<Message> messages;
    std::size_t sent = 0;
    bool cut = false;
  };
  Lane& lane(int sender, int receiver) {
    const auto world = static_cast<std::size_t>(world_size_);
    return lanes_[static_cast<std::size_t>(sender) * world + static_cast<std::size_t>(receiver)];
  }
  void throw_failure(int rank) const;  // with mutex_ held

  const int world_size_;
  const std::shared_ptr<MessageFaults> faults_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Lane> lanes_;
  std::vector<bool> left_;
  std::optional<Error> failure_;
};

/// One rank's end of a MessageHub.
class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<MessageHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  int rank() const override { return rank_; }
  int world_size() const override { return hub_->world_size(); }
  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming, Deadline deadline) override;
  void fail(const Error& cause) noexcept override { hub_->fail(cause); }
  void check() const override { hub_->check(rank_); }
  void leave() noexcept override { hub_->leave(rank_); }

 private:
  std::shared_ptr<MessageHub> hub_;
  int rank_;
};

}  // namespace paceline
