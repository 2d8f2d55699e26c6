#pragma once

#include <span>
#include <vector>

#include "paceline/comm/message/schedule.h"
#include "paceline/comm/operation.h"
#include "paceline/comm/slices.h"

namespace paceline {

/// All-reduce on a ring: N - 1 rounds in which slices go to the next rank and are added up on the way, then N - 1
/// rounds in which the sums go round; 2 (N - 1) / N of the data are sent by each rank, to one neighbour only.
/// (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.)
///
/// Slice s is added up from rank s on, so results differ from the rank order's in the last bits, but not between ranks.
/// A Mean is kept as a mean on the way. Not for types of 16 bits: partial sums would be rounded to them, or not fit.
class Ring final : public Schedule {
 public:
  Ring(int rank, int world_size, std::size_t segment_bytes);

  /// Begins the first `count` elements of an all-reduce; `weights`, for a Mean, are those of all ranks and live on.
  void begin(const Operation& operation, std::size_t count, std::span<const double> weights);

  std::span<const std::byte> next_outgoing(int peer) override;
  void sent(int peer) override;
  std::span<std::byte> next_incoming(int peer) override;
  void arrived(int peer) override;
  bool finished() const override { return out_.round == rounds_ && in_.round == rounds_; }

 private:
  /// A position in the sequence of segments that go through this rank.
  struct Position {
    int round = 0;
    std::size_t done = 0;  // bytes of the round's slice
  };

  int slice_at(int round, int ahead) const;
  Slice bytes_of(int slice) const;
  bool gathers(int round) const { return round >= world_size_ - 1; }
  std::size_t next(const Position& at, const Slice& slice) const;
  /// Goes past `bytes`, and past rounds whose slice is empty.
  void advance(Position& at, int ahead, std::size_t bytes) const;
  void add(const Slice& slice, std::size_t bytes);

  const int rank_, world_size_, rounds_;
  const std::size_t segment_bytes_;
  Operation operation_;
  std::size_t count_ = 0;
  std::span<const double> weights_;
  Position out_, in_;
  std::vector<std::byte> scratch_;
};

}  // namespace paceline
