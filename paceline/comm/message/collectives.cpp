#include "paceline/comm/message/collectives.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "paceline/base/error.h"
#include "paceline/base/kernels.h"
#include "paceline/comm/slices.h"

namespace paceline {
namespace {

/// Waits for what never comes: for the group's failure.
class MismatchWait final : public Schedule {
 public:
  std::span<const std::byte> next_outgoing(int) override { return {}; }
  void sent(int) override {}
  std::span<std::byte> next_incoming(int) override { return std::span(&nothing_, 1); }
  void arrived(int) override {}
  bool finished() const override { return false; }

 private:
  std::byte nothing_{};
};

bool has_own_counts(const Operation& operation) {
  return operation.kind == Collective::AllToAll && !operation.counts.empty();
}

constexpr std::size_t kOneShotOverHosts = 4096;

}  // namespace

MessageCollectives::MessageCollectives(Transport& transport, Algorithm preferred, const HostGroup* hosts)
    : transport_(transport),
      preferred_(preferred),
      rank_(transport.rank()),
      world_size_(transport.world_size()),
      eager_payloads_(static_cast<std::size_t>(world_size_)),
      two_step_(rank_, world_size_, transport.segment_bytes()),
      ring_(rank_, world_size_, transport.segment_bytes()) {
  if (hosts != nullptr) chain_.emplace(*hosts, rank_, transport.segment_bytes());
}

MessageCollectives::Outcome MessageCollectives::run(const Operation& operation, Algorithm chosen, std::uint64_t number,
                                                    const WaitPolicy& wait_policy) {
  enter(operation, number, chosen == Algorithm::OneShot, wait_policy);
  compare_signatures();
  if (has_own_counts(operation)) compare_parts(operation, wait_policy);
  const std::size_t count = least_reach(operation);
  const Outcome outcome{count, operation.timed ? now() : Nanoseconds{}};
  note_weights(operation);
  if (reduces(operation.kind) && chosen == Algorithm::OneShot) {
    reduce_eager_payloads(operation, count);
    return outcome;
  }
  switch (operation.kind) {
    case Collective::AllReduce:
      if (chosen == Algorithm::Hierarchical) {
        chain_->begin(operation, count, weights_);
        transport_.run(*chain_, wait_policy);
        break;
      }
      if (chosen == Algorithm::Ring) {
        ring_.begin(operation, count, weights_);
        transport_.run(ring_, wait_policy);
        break;
      }
      [[fallthrough]];
    case Collective::Reduce: reduce_slices(operation, count, wait_policy); break;
    case Collective::ReduceScatter: reduce_parts(operation, count, wait_policy); break;
    case Collective::Broadcast:
      if (chosen == Algorithm::Direct) {
        broadcast_slices(operation, count, wait_policy);
        break;
      }
      [[fallthrough]];
    case Collective::AllGather:
    case Collective::Gather:
    case Collective::Scatter:
    case Collective::AllToAll: exchange_parts(operation, count, wait_policy); break;
    case Collective::Barrier: break;
  }
  return outcome;
}

Algorithm MessageCollectives::algorithm(const Operation& operation) const {
  const auto refuse = [&](const char* why) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} over messages cannot be carried out as {}: {}", to_string(operation.kind),
                            to_string(operation.algorithm), why),
                rank_);
  };
  const bool whole_mean =
      operation.reduce == ReduceOp::Mean &&
      (operation.dtype == Dtype::Int32 || operation.dtype == Dtype::Int64 || operation.dtype == Dtype::UInt8);
  const bool rings = operation.kind == Collective::AllReduce && !whole_mean && size_of(operation.dtype) != 2;
  const bool chains = chain_ && Hierarchical::takes(operation);
  switch (operation.algorithm) {
    case Algorithm::Auto:
      if (is_small(operation)) return Algorithm::OneShot;
      if (preferred_ == Algorithm::Ring && rings) return Algorithm::Ring;
      return preferred_ == Algorithm::Auto && chains ? Algorithm::Hierarchical : Algorithm::Direct;
    case Algorithm::OneShot:
      if (!is_small(operation)) refuse("it is too large");
      return Algorithm::OneShot;
    case Algorithm::Direct: return Algorithm::Direct;
    case Algorithm::Ring:
      if (!rings) refuse("only an all_reduce goes round a ring, no mean of integers, and nothing of 16 bits");
      return Algorithm::Ring;
    case Algorithm::Hierarchical:
      if (!chain_) refuse("no host has several ranks of this group, or they are not numbered host by host");
      if (!chains) refuse("it is for an all_reduce of float32 or float64, or of integers without a mean");
      return Algorithm::Hierarchical;
    case Algorithm::Slices:
    case Algorithm::ChunkQueue: refuse("that is for shared memory");
  }
  return Algorithm::Direct;
}

// Asked of what ranks agree on, so that all of them answer alike. Where parts differ from rank to rank, each message is
// judged for itself.
bool MessageCollectives::is_small(const Operation& operation) const {
  std::size_t most = operation.count;
  if (has_own_counts(operation)) return true;
  for (const std::size_t part : operation.counts) most = std::max(most, part);
  const std::size_t copies = operation.kind == Collective::AllReduce ? static_cast<std::size_t>(world_size_ - 1) : 1;
  // Each rank's copy for each rank of another host crosses the wire.
  if (chain_ && Hierarchical::takes(operation) && most > kOneShotOverHosts / size_of(operation.dtype)) return false;
  return most <= transport_.eager_bytes() / size_of(operation.dtype) / copies;
}

void MessageCollectives::enter(const Operation& operation, std::uint64_t number, bool eager,
                               const WaitPolicy& wait_policy) {
  const std::size_t reach = operation.reach != 0 ? operation.reach : operation.count;
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    const Bytes message = message_to(operation, peer, reach);
    eager_payloads_[static_cast<std::size_t>(peer)] = {message, eager && message.size() <= transport_.eager_bytes()};
  }
  Call call{.signature = {},
            .weight = operation.weight,
            .reach = has_own_counts(operation) ? balance_of(operation, rank_) : reach,
            .message_bytes = 0};
  sign(operation, number, call.signature);
  transport_.enter(call, eager_payloads_, wait_policy);
}

void MessageCollectives::compare_signatures() const {
  const Signature& first = transport_.call_of(0).signature;
  for (int peer = 1; peer < world_size_; ++peer) {
    const Signature& theirs = transport_.call_of(peer).signature;
    if (std::memcmp(&first, &theirs, sizeof first) != 0) throw mismatch(rank_, first, peer, theirs);
  }
}

// All ranks see whether all agree, before any data is moved; which two do not is known to the one that expects
// something else. The others wait for it to say so.
void MessageCollectives::compare_parts(const Operation& operation, const WaitPolicy& wait_policy) const {
  std::uint64_t balance = 0;
  for (int peer = 0; peer < world_size_; ++peer) balance += transport_.call_of(peer).reach;
  if (balance == 0) return;
  const std::size_t size = size_of(operation.dtype);
  for (int peer = 0; peer < world_size_; ++peer) {
    const Call& call = transport_.call_of(peer);
    const std::size_t due = out_part_count(operation, peer) * size;
    if (peer == rank_ || call.message_bytes == due) continue;
    throw Error(ErrorCode::Mismatch,
                fmt::format("in {}, rank {} sends {} elements to rank {}, which has a place for {}. No data was moved; "
                            "receive_counts must be what the others' send_counts say",
                            describe(call.signature), peer, call.message_bytes / size, rank_, due / size),
                rank_, peer);
  }
  MismatchWait mismatch_wait;
  transport_.run(mismatch_wait, wait_policy);
}

std::size_t MessageCollectives::least_reach(const Operation& operation) const {
  std::size_t least = operation.count;
  for (int peer = 0; peer < world_size_; ++peer) {
    least = std::min<std::size_t>(least, transport_.call_of(peer).reach);
  }
  return least;
}

void MessageCollectives::note_weights(const Operation& operation) {
  weights_.clear();
  if (!reduces(operation.kind) || operation.reduce != ReduceOp::Mean) return;
  for (int peer = 0; peer < world_size_; ++peer) weights_.push_back(transport_.call_of(peer).weight);
  scale_weights(weights_);
}

// What this rank has for `peer`, where `count` elements of the whole, or of each even part, are carried out.
MessageCollectives::Bytes MessageCollectives::message_to(const Operation& operation, int peer,
                                                         std::size_t count) const {
  const std::size_t size = size_of(operation.dtype);
  const auto part = [&](int of) -> Bytes {
    const std::size_t elements = operation.counts.empty() ? count : in_part_count(operation, of);
    return {operation.in + in_part_begin(operation, of) * size, elements * size};
  };
  switch (operation.kind) {
    case Collective::AllReduce: return {operation.in, count * size};
    case Collective::Reduce: return peer == operation.root ? Bytes(operation.in, count * size) : Bytes();
    case Collective::Broadcast: return rank_ == operation.root ? Bytes(operation.in, count * size) : Bytes();
    case Collective::ReduceScatter:
    case Collective::AllToAll: return part(peer);
    case Collective::Scatter: return rank_ == operation.root ? part(peer) : Bytes();
    case Collective::Gather:
      if (peer != operation.root) return {};
      [[fallthrough]];
    case Collective::AllGather:
      return {operation.in, (operation.counts.empty() ? count : in_part_count(operation, rank_)) * size};
    case Collective::Barrier: return {};
  }
  return {};
}

// Where a message from `peer` goes, of operations that only move data.
std::span<std::byte> MessageCollectives::place_of(const Operation& operation, int peer, std::size_t count) const {
  const std::size_t size = size_of(operation.dtype);
  switch (operation.kind) {
    case Collective::Broadcast:
      if (peer != operation.root) return {};
      return {operation.out, count * size};
    case Collective::Scatter:
      if (peer != operation.root) return {};
      return {operation.out, (operation.counts.empty() ? count : out_part_count(operation, rank_)) * size};
    case Collective::Gather:
      if (rank_ != operation.root) return {};
      [[fallthrough]];
    case Collective::AllGather:
    case Collective::AllToAll:
      return {operation.out + out_part_begin(operation, peer) * size,
              (operation.counts.empty() ? count : out_part_count(operation, peer)) * size};
    default: return {};
  }
}

void MessageCollectives::keep_own_part(const Operation& operation, std::size_t count) const {
  if (operation.kind == Collective::Broadcast) return;  // always in place
  const auto place = place_of(operation, rank_, count);
  const std::size_t size = size_of(operation.dtype);
  const bool own_is_part = operation.kind == Collective::Scatter || operation.kind == Collective::AllToAll;
  const std::byte* from = operation.in + (own_is_part ? in_part_begin(operation, rank_) * size : 0);
  if (!place.empty() && from != place.data()) std::memcpy(place.data(), from, place.size());
}

void MessageCollectives::reduce_eager_payloads(const Operation& operation, std::size_t count) {
  if (has_root(operation.kind) && rank_ != operation.root) return;
  const bool part = operation.kind == Collective::ReduceScatter;
  if (part && !operation.counts.empty()) count = operation.counts[static_cast<std::size_t>(rank_)];
  sources_.clear();
  for (int peer = 0; peer < world_size_; ++peer) {
    const std::byte* own = operation.in + (part ? in_part_begin(operation, rank_) * size_of(operation.dtype) : 0);
    sources_.push_back(peer == rank_ ? own : eager_payload(peer, count * size_of(operation.dtype)));
  }
  std::byte* const destination[] = {operation.out};
  if (count > 0) reduce(operation.reduce, operation.dtype, sources_, destination, count, weights_);
}

// A peer that calls the same has as much to bring; never read past what it brought.
const std::byte* MessageCollectives::eager_payload(int peer, std::size_t bytes) const {
  const Bytes eager_payload = transport_.eager_payload_of(peer);
  if (eager_payload.size() >= bytes) return eager_payload.data();
  throw Error(ErrorCode::Corrupt,
              fmt::format("rank {} sent {} bytes where {} were due", peer, eager_payload.size(), bytes), rank_, peer);
}

void MessageCollectives::exchange_parts(const Operation& operation, std::size_t count, const WaitPolicy& wait_policy) {
  two_step_.clear();
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    if (!eager_payloads_[static_cast<std::size_t>(peer)].eager)
      two_step_.send(peer, message_to(operation, peer, count));
    const auto place = place_of(operation, peer, count);
    if (transport_.eager_payload_of(peer).empty()) two_step_.receive(peer, place);
    else if (!place.empty()) std::memcpy(place.data(), eager_payload(peer, place.size()), place.size());
  }
  keep_own_part(operation, count);
  if (operation.kind == Collective::AllToAll && operation.in == operation.out) two_step_.swap_in_place();
  if (!two_step_.finished()) transport_.run(two_step_, wait_policy);
}

void MessageCollectives::reduce_slices(const Operation& operation, std::size_t count, const WaitPolicy& wait_policy) {
  const std::size_t size = size_of(operation.dtype);
  const auto slice = [&](int of) {
    const Slice elements = slice_of(count, operation.dtype, of, world_size_);
    return Slice{elements.begin * size, elements.count * size};
  };
  const bool everyone = operation.kind == Collective::AllReduce;
  const bool receives = everyone || rank_ == operation.root;
  const Slice own = slice(rank_);
  two_step_.clear();
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    const Slice theirs = slice(peer);
    two_step_.send(peer, {operation.in + theirs.begin, theirs.count});
    if (receives) two_step_.receive_slice(peer, {operation.out + theirs.begin, theirs.count});
    if (everyone || peer == operation.root) two_step_.send_slice(peer);
  }
  if (!receives && slice_.size() < own.count) slice_.resize(own.count);
  std::byte* to = receives ? operation.out + own.begin : slice_.data();
  two_step_.reduce_slice(operation.reduce, operation.dtype, weights_, operation.in + own.begin, {to, own.count});
  transport_.run(two_step_, wait_policy);
}

void MessageCollectives::reduce_parts(const Operation& operation, std::size_t count, const WaitPolicy& wait_policy) {
  two_step_.clear();
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer != rank_) two_step_.send(peer, message_to(operation, peer, count));
  }
  const Bytes own = message_to(operation, rank_, count);
  two_step_.reduce_slice(operation.reduce, operation.dtype, weights_, own.data(), {operation.out, own.size()});
  transport_.run(two_step_, wait_policy);
}

// The root sends a slice to each of the others, and these pass theirs on to each other.
void MessageCollectives::broadcast_slices(const Operation& operation, std::size_t count,
                                          const WaitPolicy& wait_policy) {
  const std::size_t size = size_of(operation.dtype);
  const auto slice = [&](int of) {
    const Slice elements = slice_of(count, operation.dtype, of, world_size_);
    return std::span(operation.out + elements.begin * size, elements.count * size);
  };
  two_step_.clear();
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    if (rank_ == operation.root) two_step_.send(peer, slice(peer));
    else two_step_.receive_slice(peer, slice(peer));
    if (peer != operation.root) two_step_.send_slice(peer);
  }
  if (rank_ == operation.root) two_step_.have_slice(slice(rank_));
  else two_step_.forward_slice(operation.root, slice(rank_));
  transport_.run(two_step_, wait_policy);
}

namespace {

// Pages that take memory once they are touched, which in a world of one nobody does.
Buffer allocate_pages(std::size_t bytes) {
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw system_error(fmt::format("cannot get {} MiB of memory", bytes >> 20), errno);
  return {static_cast<std::byte*>(data), bytes, nullptr,
          [](void*, std::byte* memory, std::size_t size) noexcept { ::munmap(memory, size); }};
}

}  // namespace

Buffer allocate_on_heap(std::size_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  constexpr std::size_t kOfPages = std::size_t{256} << 10;
  if (bytes >= kOfPages) return allocate_pages(bytes);
  auto* data = static_cast<std::byte*>(::operator new(std::max<std::size_t>(bytes, 1), kAlignment));
  std::fill_n(data, bytes, std::byte{0});
  return {data, bytes, nullptr,
          [](void*, std::byte* memory, std::size_t) noexcept { ::operator delete(memory, kAlignment); }};
}

}  // namespace paceline
