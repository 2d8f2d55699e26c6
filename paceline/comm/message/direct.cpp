#include "paceline/comm/message/direct.h"

#include <algorithm>
#include <cstring>

namespace paceline {

TwoStep::TwoStep(int rank, int world_size, std::size_t segment_bytes)
    : rank_(rank), segment_bytes_(segment_bytes), lanes_(static_cast<std::size_t>(world_size)) {}

void TwoStep::clear() {
  for (Lane& lane : lanes_) {
    lane.message = {};
    lane.incoming = lane.incoming_slice = {};
    lane.sends_slice = false;
    lane.sent = lane.slice_sent = lane.received = lane.slice_received = lane.staged = 0;
  }
  outgoing_left_ = incoming_left_ = slice_ready_ = 0;
  slice_ = {};
  forwards_ = -1;
  staged_ = reduces_ = false;
}

void TwoStep::send(int peer, std::span<const std::byte> message) {
  lanes_[static_cast<std::size_t>(peer)].message = message;
  outgoing_left_ += message.size();
}

void TwoStep::receive(int peer, std::span<std::byte> message) {
  lanes_[static_cast<std::size_t>(peer)].incoming = message;
  incoming_left_ += message.size();
}

void TwoStep::receive_slice(int peer, std::span<std::byte> slice) {
  lanes_[static_cast<std::size_t>(peer)].incoming_slice = slice;
  incoming_left_ += slice.size();
}

void TwoStep::have_slice(std::span<const std::byte> slice) {
  slice_ = slice;
  slice_ready_ = slice.size();
  for (const Lane& lane : lanes_) outgoing_left_ += lane.sends_slice ? slice.size() : 0;
}

void TwoStep::forward_slice(int peer, std::span<std::byte> slice) {
  have_slice(slice);
  receive(peer, slice);
  forwards_ = peer;
  slice_ready_ = 0;
}

void TwoStep::reduce_slice(ReduceOp op, Dtype dtype, std::span<const double> weights, const std::byte* own,
                           std::span<std::byte> slice) {
  have_slice(slice);
  slice_ready_ = 0;
  reduces_ = true;
  op_ = op;
  dtype_ = dtype;
  weights_ = weights;
  own_ = own;
  reduced_ = slice.data();
  for (std::size_t peer = 0; peer < lanes_.size(); ++peer) {
    if (static_cast<int>(peer) != rank_) incoming_left_ += slice.size();
  }
}

std::size_t TwoStep::next(std::size_t done, std::size_t size) const { return std::min(segment_bytes_, size - done); }

// Whether a segment of the first message is next, both having this many bytes, and this many of them done. Sender and
// receiver find the same.
static bool is_first(std::size_t done, std::size_t size, std::size_t slice_done, std::size_t slice_size,
                     std::size_t lag) {
  return done < size && (slice_done == slice_size || done < slice_done + lag);
}

bool TwoStep::sends_message(const Lane& lane) const {
  return is_first(lane.sent, lane.message.size(), lane.slice_sent, lane.sends_slice ? slice_.size() : 0,
                  kLag * segment_bytes_);
}

bool TwoStep::receives_message(const Lane& lane) const {
  return is_first(lane.received, first_bytes(lane), lane.slice_received, lane.incoming_slice.size(),
                  kLag * segment_bytes_);
}

std::span<const std::byte> TwoStep::next_outgoing(int peer) {
  Lane& lane = lanes_[static_cast<std::size_t>(peer)];
  if (sends_message(lane)) {
    const auto segment = lane.message.subspan(lane.sent, next(lane.sent, lane.message.size()));
    if (!staged_) return segment;
    std::byte* copy = scratch(lane, segment_bytes_);
    if (lane.staged == lane.sent) {
      std::memcpy(copy, segment.data(), segment.size());
      lane.staged += segment.size();
    }
    return {copy, segment.size()};
  }
  if (!lane.sends_slice || lane.slice_sent == slice_.size()) return {};
  const std::size_t bytes = next(lane.slice_sent, slice_.size());
  if (lane.slice_sent + bytes > slice_ready_) return {};
  return slice_.subspan(lane.slice_sent, bytes);
}

void TwoStep::sent(int peer) {
  Lane& lane = lanes_[static_cast<std::size_t>(peer)];
  const bool first = sends_message(lane);
  std::size_t& done = first ? lane.sent : lane.slice_sent;
  const std::size_t bytes = next(done, first ? lane.message.size() : slice_.size());
  done += bytes;
  outgoing_left_ -= bytes;
}

std::span<std::byte> TwoStep::next_incoming(int peer) {
  Lane& lane = lanes_[static_cast<std::size_t>(peer)];
  if (!receives_message(lane)) {
    const std::size_t bytes = next(lane.slice_received, lane.incoming_slice.size());
    return lane.incoming_slice.subspan(lane.slice_received, bytes);
  }
  const std::size_t bytes = next(lane.received, first_bytes(lane));
  if (reduces_) {
    const std::size_t waiting = lane.received - std::min(lane.received, slice_ready_);
    if (waiting >= kDepth * segment_bytes_) return {};
    std::byte* slots = scratch(lane, kDepth * segment_bytes_);
    return {slots + lane.received / segment_bytes_ % kDepth * segment_bytes_, bytes};
  }
  if (staged_ && lane.received + bytes > lane.staged) return {};
  return lane.incoming.subspan(lane.received, bytes);
}

void TwoStep::arrived(int peer) {
  Lane& lane = lanes_[static_cast<std::size_t>(peer)];
  const bool first = receives_message(lane);
  std::size_t& done = first ? lane.received : lane.slice_received;
  const std::size_t bytes = next(done, first ? first_bytes(lane) : lane.incoming_slice.size());
  done += bytes;
  incoming_left_ -= bytes;
  if (first && reduces_) reduce_arrived();
  if (first && peer == forwards_) slice_ready_ = done;
}

// All segments of a position are there: they are added up in rank order.
void TwoStep::reduce_arrived() {
  for (;;) {
    std::size_t everyone = slice_.size();
    for (std::size_t peer = 0; peer < lanes_.size(); ++peer) {
      if (static_cast<int>(peer) != rank_) everyone = std::min(everyone, lanes_[peer].received);
    }
    if (everyone <= slice_ready_) return;
    const std::size_t bytes = next(slice_ready_, slice_.size());
    sources_.clear();
    for (std::size_t peer = 0; peer < lanes_.size(); ++peer) {
      const std::size_t slot = slice_ready_ / segment_bytes_ % kDepth * segment_bytes_;
      sources_.push_back(static_cast<int>(peer) == rank_ ? own_ + slice_ready_ : lanes_[peer].scratch.data() + slot);
    }
    std::byte* const destination[] = {reduced_ + slice_ready_};
    reduce(op_, dtype_, sources_, destination, bytes / size_of(dtype_), weights_);
    slice_ready_ += bytes;
  }
}

std::byte* TwoStep::scratch(Lane& lane, std::size_t bytes) {
  if (lane.scratch.size() < bytes) lane.scratch.resize(bytes);
  return lane.scratch.data();
}

}  // namespace paceline
