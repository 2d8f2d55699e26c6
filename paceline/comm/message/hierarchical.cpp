#include "paceline/comm/message/hierarchical.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "paceline/base/bytes.h"
#include "paceline/base/error.h"
#include "paceline/base/kernels.h"

namespace paceline {
namespace {

bool is_whole(Dtype dtype) { return dtype == Dtype::Int32 || dtype == Dtype::Int64 || dtype == Dtype::UInt8; }

// Zeros that leave the bits of whatever is added to them: -0 + x is x, even where x is -0.
void make_neutral(Dtype dtype, std::byte* to, std::size_t count) {
  if (dtype == Dtype::Float32) std::fill_n(reinterpret_cast<float*>(to), count, -0.0F);
  else std::fill_n(reinterpret_cast<double*>(to), count, -0.0);
}

}  // namespace

Hierarchical::Hierarchical(const HostGroup& hosts, int rank, std::size_t segment_bytes)
    : memory_(*hosts.memory),
      rank_(rank),
      most_segment_bytes_(segment_bytes),
      ranks_here_(hosts.map.hosts[static_cast<std::size_t>(hosts.map.host_of(rank))]),
      place_(hosts.map.place_of(rank)),
      slices_(hosts.map.least_ranks()),
      neighbours_(ranks_here_.size()) {
  std::size_t world_size = 0;
  for (const auto& ranks : hosts.map.hosts) world_size += ranks.size();
  neighbour_of_.assign(world_size, -1);
  for (std::size_t place = 0; place < ranks_here_.size(); ++place) {
    if (ranks_here_[place] != rank)
      neighbour_of_[static_cast<std::size_t>(ranks_here_[place])] = static_cast<int>(place);
  }
  if (place_ >= slices_) return;
  const auto counterpart = [&](int host) {
    const bool exists = host >= 0 && host < static_cast<int>(hosts.map.hosts.size());
    return exists ? hosts.map.hosts[static_cast<std::size_t>(host)][static_cast<std::size_t>(place_)] : -1;
  };
  previous_ = counterpart(hosts.map.host_of(rank) - 1);
  next_ = counterpart(hosts.map.host_of(rank) + 1);
}

bool Hierarchical::takes(const Operation& operation) {
  if (operation.kind != Collective::AllReduce) return false;
  if (is_whole(operation.dtype)) return operation.reduce != ReduceOp::Mean;
  return operation.dtype == Dtype::Float32 || operation.dtype == Dtype::Float64;
}

void Hierarchical::begin(const Operation& operation, std::size_t count, std::span<const double> weights) {
  operation_ = operation;
  weights_ = weights;
  plain_ = is_plain_mean(weights);
  total_ = 0;
  for (const double weight : weights) total_ += plain_ ? 1 : weight;
  own_weights_.assign(1, 1);
  if (!weights.empty()) {
    for (const int rank : ranks_here_) own_weights_.push_back(plain_ ? 1 : weights[static_cast<std::size_t>(rank)]);
  }

  bytes_ = count * size_of(operation.dtype);
  slice_ = {};
  if (place_ < slices_) {
    const Slice elements = slice_of(count, operation.dtype, place_, slices_);
    slice_ = {elements.begin * size_of(operation.dtype), elements.count * size_of(operation.dtype)};
  }
  const std::size_t segment = std::bit_floor(slice_.count / kSegments);
  segment_ = std::clamp(segment, std::min(kLeastSegment, most_segment_bytes_), most_segment_bytes_);
  if (scratch_.size() < kDepth * segment_) scratch_.resize(kDepth * segment_);

  for (Neighbour& one : neighbours_) one = {};
  neighbours_[static_cast<std::size_t>(place_)].operands = {memory_.offset_of(operation.in),
                                                            memory_.offset_of(operation.out)};
  find_operands(place_);
  unknown_ = undone_ = untold_ = neighbours_.size() - 1;
  arrived_ = added_ = sent_ = final_ = returned_ = 0;
  if (all_known()) note_operands();
}

std::size_t Hierarchical::next(std::size_t done) const { return std::min(segment_, slice_.count - done); }

std::byte* Hierarchical::slot(std::size_t at) { return scratch_.data() + at / segment_ % kDepth * segment_; }

bool Hierarchical::slice_done() const {
  return final_ == slice_.count && (previous_ < 0 || returned_ == slice_.count) && (next_ < 0 || sent_ == slice_.count);
}

bool Hierarchical::finished() const { return slice_done() && undone_ == 0 && untold_ == 0; }

std::span<const std::byte> Hierarchical::next_outgoing(int peer) {
  if (here(peer)) {
    Neighbour& one = neighbour(peer);
    const Operands& own = neighbours_[static_cast<std::size_t>(place_)].operands;
    if (one.told == 0) return std::as_bytes(std::span(&own, 1));
    if (one.told == 1 && all_known() && slice_done()) return std::span(&one.done, 1);
    return {};
  }
  if (!all_known()) return {};
  if (peer == next_ && sent_ < slice_.count) {
    if (previous_ < 0 && added_ == sent_) {
      std::byte* const to[] = {slot(sent_)};
      add_own(nullptr, to, sent_, next(sent_));
      added_ += next(sent_);
    }
    if (added_ == sent_) return {};
    return {slot(sent_), next(sent_)};
  }
  if (peer == previous_ && returned_ < final_) {
    return {out_[static_cast<std::size_t>(place_)] + returned_, next(returned_)};
  }
  return {};
}

void Hierarchical::sent(int peer) {
  if (here(peer)) {
    if (++neighbour(peer).told == 2) --untold_;
  } else if (peer == next_) {
    sent_ += next(sent_);
  } else {
    returned_ += next(returned_);
  }
}

std::span<std::byte> Hierarchical::next_incoming(int peer) {
  if (here(peer)) {
    Neighbour& one = neighbour(peer);
    if (one.heard == 0) return std::as_writable_bytes(std::span(&one.operands, 1));
    if (one.heard == 1) return std::span(&one.done, 1);
    return {};
  }
  if (!all_known()) return {};
  if (peer == previous_ && arrived_ < slice_.count) {
    // The last host keeps none of it.
    const bool room = next_ < 0 || arrived_ < sent_ + kDepth * segment_;
    if (room) return {slot(arrived_), next(arrived_)};
  }
  if (peer == next_ && final_ < slice_.count) return {out_[static_cast<std::size_t>(place_)] + final_, next(final_)};
  return {};
}

void Hierarchical::arrived(int peer) {
  if (here(peer)) {
    if (++neighbour(peer).heard == 2) {
      --undone_;
      return;
    }
    find_operands(neighbour_of_[static_cast<std::size_t>(peer)]);
    if (--unknown_ == 0) note_operands();
    return;
  }
  if (peer == next_) {
    pass_on(final_, next(final_));
    final_ += next(final_);
    return;
  }
  const std::size_t bytes = next(arrived_);
  if (next_ < 0) {
    destinations_.clear();
    for (std::byte* out : out_) destinations_.push_back(out + arrived_);
    add_own(slot(arrived_), destinations_, arrived_, bytes);
    final_ += bytes;
  } else {
    std::byte* const to[] = {slot(arrived_)};
    add_own(slot(arrived_), to, arrived_, bytes);
    added_ += bytes;
  }
  arrived_ += bytes;
}

void Hierarchical::find_operands(int place) {
  Neighbour& one = neighbours_[static_cast<std::size_t>(place)];
  if (bytes_ == 0) return;
  one.in = memory_.at_peer(place, one.operands.in, bytes_);
  one.out = memory_.at_peer(place, one.operands.out, bytes_);
  if (one.in != nullptr && one.out != nullptr) return;
  const int peer = ranks_here_[static_cast<std::size_t>(place)];
  throw Error(ErrorCode::Corrupt,
              fmt::format("rank {} says that {} bytes of its operands lie at {} and {} of its memory, where there is "
                          "none",
                          peer, bytes_, one.operands.in, one.operands.out),
              rank_, peer);
}

// Where this rank's slice lies in the operands of all ranks of the host.
void Hierarchical::note_operands() {
  in_.clear();
  out_.clear();
  for (const Neighbour& one : neighbours_) {
    in_.push_back(one.in + slice_.begin);
    out_.push_back(one.out + slice_.begin);
  }
}

// The sum of this host's ranks, after `partial` where there is one, of `bytes` from `at` on in the slice.
void Hierarchical::add_own(const std::byte* partial, std::span<std::byte* const> to, std::size_t at,
                           std::size_t bytes) {
  const std::size_t count = bytes / size_of(operation_.dtype);
  sources_.clear();
  if (partial != nullptr) sources_.push_back(partial);
  for (const std::byte* in : in_) sources_.push_back(in + at);
  const bool last = next_ < 0;
  if (operation_.reduce != ReduceOp::Mean) return reduce(operation_.reduce, operation_.dtype, sources_, to, count);
  if (plain_ && !last) return reduce(ReduceOp::Sum, operation_.dtype, sources_, to, count);
  if (last && total_ == 0) {
    if (bytes == 0) return;  // then a destination may be null
    for (std::byte* destination : to) std::memset(destination, 0, bytes);
    return;
  }
  const auto weights = std::span(own_weights_).subspan(partial != nullptr ? 0 : 1);
  if (std::any_of(weights.begin(), weights.end(), [](double w) { return w != 0; })) {
    reduce_part(operation_.dtype, sources_, to, count, weights, last ? total_ : 1);
  } else {
    for (std::byte* destination : to) make_neutral(operation_.dtype, destination, count);
  }
}

// The result has come to this rank's memory; the others of the host get it from there.
void Hierarchical::pass_on(std::size_t at, std::size_t bytes) {
  for (std::size_t place = 0; place < out_.size(); ++place) {
    if (static_cast<int>(place) != place_) {
      copy_bytes(out_[place] + at, out_[static_cast<std::size_t>(place_)] + at, bytes);
    }
  }
}

}  // namespace paceline
