#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "paceline/comm/message/faults.h"
#include "paceline/comm/message/transport.h"

namespace paceline {

/// A call with its eager payload, or a segment, between ranks that are threads.
struct ThreadMessage {
  std::optional<Call> call;
  std::vector<std::byte> data;
  Nanoseconds due{};
};

/// Where the messages of a group of threads wait for their receivers.
class MessageHub {
 public:
  MessageHub(int world_size, std::shared_ptr<MessageFaults> faults);

  int world_size() const { return world_size_; }
  void send(int sender, int receiver, ThreadMessage message);
  /// The next message, if it is there. Throws PeerLost if none will come.
  std::optional<ThreadMessage> receive(int sender, int receiver);
  /// A moment to wait() from: taken before receive() is tried.
  struct Moment {
    std::uint64_t changes;
    Nanoseconds time;
  };
  Moment moment();
  /// Blocks until a message may have come for `rank` since then.
  void wait(int rank, Moment since, Nanoseconds at_most);
  void fail(const Error& cause) noexcept;
  void check(int rank);
  void leave(int rank) noexcept;

 private:
  struct Lane {
    std::deque<ThreadMessage> messages;
    std::size_t sent = 0;
    bool cut = false;
  };
  Lane& lane(int sender, int receiver) {
    const auto world = static_cast<std::size_t>(world_size_);
    return lanes_[static_cast<std::size_t>(sender) * world + static_cast<std::size_t>(receiver)];
  }
  void throw_failure(int rank) const;  // with mutex_ held
  void ring() noexcept;                // with mutex_ held

  const int world_size_;
  const std::shared_ptr<MessageFaults> faults_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t changes_ = 0;
  std::vector<Lane> lanes_;
  std::vector<bool> left_;
  std::optional<Error> failure_;
};

/// One rank's end of a MessageHub.
class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<MessageHub> hub, int rank);
  const char* name() const override { return "messages"; }
  int rank() const override { return rank_; }
  int world_size() const override { return hub_->world_size(); }
  std::size_t eager_bytes() const override { return 8192; }
  std::size_t segment_bytes() const override { return 65536; }
  void enter(const Call& call, std::span<const EagerPayload> eager_payloads, const WaitPolicy& wait_policy) override;
  const Call& call_of(int peer) const override { return *calls_[static_cast<std::size_t>(peer)].call; }
  std::span<const std::byte> eager_payload_of(int peer) const override {
    return calls_[static_cast<std::size_t>(peer)].data;
  }
  void run(Schedule& schedule, const WaitPolicy& wait_policy) override;
  void fail(const Error& cause) noexcept override { hub_->fail(cause); }
  void check() const override { hub_->check(rank_); }
  void leave() noexcept override { hub_->leave(rank_); }

 private:
  ThreadMessage wait_for(int peer, Deadline deadline);
  bool receive_segment(Schedule& schedule, int peer);

  std::shared_ptr<MessageHub> hub_;
  int rank_;
  std::vector<ThreadMessage> calls_;
};

}  // namespace paceline
