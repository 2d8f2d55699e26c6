#pragma once

#include <poll.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "paceline/comm/status/job_status.h"
#include "paceline/comm/tcp/link.h"
#include "paceline/comm/tcp/mesh.h"

namespace paceline {

/// Messages over TCP, one connection a peer. Has no thread: whoever calls moves the data, all peers and both directions
/// in one loop that spins shortly and then sleeps in poll().
///
/// Ranks fail together: the first to fail writes the cause to the store, then ends its connections; the others find
/// them ended and read the cause there. Where nobody wrote one, a process or a network is gone.
class TcpTransport final : public Transport {
 public:
  /// `name` is the communicator's, `job_status` as CommOptions has it.
  TcpTransport(TcpGroup group, std::shared_ptr<Store> store, std::string name,
               std::shared_ptr<const JobStatus> job_status = nullptr);

  const char* name() const override { return "tcp"; }
  int rank() const override { return group_.rank; }
  int world_size() const override { return static_cast<int>(links_.size()); }
  std::size_t eager_bytes() const override { return kEagerBytes; }
  std::size_t segment_bytes() const override { return group_.segment_bytes; }
  void enter(const Call& call, std::span<const EagerPayload> eager_payloads, const WaitPolicy& wait_policy) override;
  const Call& call_of(int peer) const override { return entered_[static_cast<std::size_t>(peer)]; }
  std::span<const std::byte> eager_payload_of(int peer) const override { return link(peer).eager_payload(); }
  void run(Schedule& schedule, const WaitPolicy& wait_policy) override;
  std::vector<LinkInfo> links() const override;
  void fail(const Error& cause) noexcept override;
  void check() const override;
  void leave() noexcept override;

 private:
  static constexpr std::size_t kEagerBytes = 65536;

  TcpLink& link(int peer) { return links_[static_cast<std::size_t>(peer)]; }
  const TcpLink& link(int peer) const { return links_[static_cast<std::size_t>(peer)]; }
  short& waits_for(int peer) { return polled_[static_cast<std::size_t>(peer)].events; }

  enum class Pass { Done, Moved, Idle };
  template <class Move>
  void until_done(const WaitPolicy& wait_policy, Move&& move);
  bool push(int peer);
  bool pull_call(int peer);
  bool send_segment(Schedule& schedule, int peer);
  bool receive_segment(Schedule& schedule, int peer);
  void pause() const;
  [[noreturn]] void lost(int peer);
  [[noreturn]] void time_out(Nanoseconds timeout);
  Error agree_on_first(const Error& cause) const;
  std::string where_is(int peer) const;
  std::string describe_own() const;

  TcpGroup group_;
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<const JobStatus> job_status_;
  const std::string name_;
  const bool oversubscribed_;
  std::vector<TcpLink> links_;   // by rank
  std::vector<Call> entered_;    // by rank, the last
  std::vector<pollfd> polled_;   // by rank, with what it waits for
  std::vector<char> in_flight_;  // by rank: a segment is being sent

  std::atomic<bool> failed_{false};
  std::mutex failing_;        // held while the first cause is found
  mutable std::mutex mutex_;  // guards failure_
  std::optional<Error> failure_;
};

}  // namespace paceline
