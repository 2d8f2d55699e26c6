#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "paceline/base/kernels.h"
#include "paceline/comm/message/schedule.h"

namespace paceline {

/// The direct algorithms: every rank has at most two messages for each other one. The first can be sent at once; the
/// second one, the same for all, becomes known by and by: a slice that this rank reduces from the first messages, or
/// forwards.
///
/// All-reduce of S bytes on N ranks: slices to their owners, who add them up in rank order segment by segment while
/// these are in cache, and the sums back; 2 (N - 1) / N S bytes are sent and received by each rank.
///
/// The two messages are interleaved, the second one kLag segments behind the first. So a sum leaves while it is in
/// cache, and in place, a sum comes in where what it was made of went out just before: each byte of a large buffer is
/// brought from memory once and written there once.
class TwoStep final : public Schedule {
 public:
  TwoStep(int rank, int world_size, std::size_t segment_bytes);

  /// Forgets what was set; then set anew.
  void clear();
  /// Empty messages are not sent.
  void send(int peer, std::span<const std::byte> message);
  void receive(int peer, std::span<std::byte> message);
  /// The second messages. A rank's own slice goes to each peer that it is sent to.
  void send_slice(int peer) { lanes_[static_cast<std::size_t>(peer)].sends_slice = true; }
  void receive_slice(int peer, std::span<std::byte> slice);
  /// The slice is there from the beginning.
  void have_slice(std::span<const std::byte> slice);
  /// The slice is what the first message from `peer` brings.
  void forward_slice(int peer, std::span<std::byte> slice);
  /// The slice, of slice.size() bytes, is reduced from `own` and a first message of that size from each peer, `weights`
  /// as reduce() takes them. `own` may be the slice.
  void reduce_slice(ReduceOp op, Dtype dtype, std::span<const double> weights, const std::byte* own,
                    std::span<std::byte> slice);
  /// Messages are sent from the memory into which others are received: copies each segment out of the way first.
  void swap_in_place() { staged_ = true; }

  std::span<const std::byte> next_outgoing(int peer) override;
  void sent(int peer) override;
  std::span<std::byte> next_incoming(int peer) override;
  void arrived(int peer) override;
  bool finished() const override { return outgoing_left_ == 0 && incoming_left_ == 0; }

 private:
  static constexpr std::size_t kDepth = 2;  // segments of a peer that may wait for those of others
  static constexpr std::size_t kLag = 2;

  struct Lane {
    std::span<const std::byte> message;
    std::span<std::byte> incoming, incoming_slice;
    bool sends_slice = false;
    // Bytes done.
    std::size_t sent = 0, slice_sent = 0, received = 0, slice_received = 0, staged = 0;
    std::vector<std::byte> scratch;
  };

  std::size_t next(std::size_t done, std::size_t size) const;
  std::size_t first_bytes(const Lane& lane) const { return reduces_ ? slice_.size() : lane.incoming.size(); }
  bool sends_message(const Lane& lane) const;
  bool receives_message(const Lane& lane) const;
  std::byte* scratch(Lane& lane, std::size_t bytes);
  void reduce_arrived();

  const int rank_;
  const std::size_t segment_bytes_;
  std::vector<Lane> lanes_;  // by rank
  std::size_t outgoing_left_ = 0, incoming_left_ = 0;

  std::span<const std::byte> slice_;
  std::size_t slice_ready_ = 0;  // bytes of it that may be sent
  int forwards_ = -1;
  bool staged_ = false;

  bool reduces_ = false;
  ReduceOp op_{};
  Dtype dtype_{};
  std::span<const double> weights_;
  const std::byte* own_ = nullptr;
  std::byte* reduced_ = nullptr;
  std::vector<const std::byte*> sources_;
};

}  // namespace paceline
