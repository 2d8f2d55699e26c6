#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "paceline/comm/engine.h"
#include "paceline/comm/host_map.h"
#include "paceline/comm/message/schedule.h"
#include "paceline/comm/slices.h"

namespace paceline {

/// The hosts of a group, and the engine inside this one, whose ranks are the host's in their order: its memory is what
/// they share.
struct HostGroup {
  HostMap map;
  std::unique_ptr<Engine> memory;
};

/// All-reduce of ranks on several hosts, inside the hosts first. As many ranks of each host as the smallest one has
/// share the data in slices. A slice's sum goes along a chain: the first host's rank adds up the slices of its host's
/// ranks, straight from their memory, the next host's adds its own to what arrives, and so on; the last host has the
/// result, which goes back the same way while the rest of the sum is still coming. Each of them writes it to the memory
/// of all ranks of its host.
///
/// Every sum is taken in rank order, so the bits are those of one host. Of S bytes, each host sends at most S to either
/// neighbour: with two hosts as little as any all-reduce can, with M hosts M / (M - 1) times as much.
class Hierarchical final : public Schedule {
 public:
  /// `hosts` outlives the chain.
  Hierarchical(const HostGroup& hosts, int rank, std::size_t segment_bytes);

  /// Float32 and Float64, and whole numbers without a mean. (Partial sums of 16 bits would be rounded on the way.)
  static bool takes(const Operation& operation);

  /// Begins the first `count` elements of an all-reduce whose operands `memory` reaches; `weights`, for a Mean, are
  /// those of all ranks and live on.
  void begin(const Operation& operation, std::size_t count, std::span<const double> weights);

  std::span<const std::byte> next_outgoing(int peer) override;
  void sent(int peer) override;
  std::span<std::byte> next_incoming(int peer) override;
  /// Throws Corrupt where a rank of this host says that its operands lie outside of its memory.
  void arrived(int peer) override;
  bool finished() const override;

 private:
  static constexpr std::size_t kDepth = 2;  // segments of a partial sum that wait here
  static constexpr std::size_t kLeastSegment = 16384;
  static constexpr std::size_t kSegments = 256;  // of a slice, where they are not too small or too large

  /// Where a rank's operands lie, in its memory of this host.
  struct Operands {
    std::uint64_t in, out;
  };
  /// What goes between two ranks of this host: where operands lie, then that all is written.
  struct Neighbour {
    int told = 0, heard = 0;
    Operands operands{};
    std::byte *in = nullptr, *out = nullptr;  // the same here
    std::byte done{};
  };

  bool here(int peer) const { return neighbour_of_[static_cast<std::size_t>(peer)] >= 0; }
  Neighbour& neighbour(int peer) {
    return neighbours_[static_cast<std::size_t>(neighbour_of_[static_cast<std::size_t>(peer)])];
  }
  std::size_t next(std::size_t done) const;
  std::byte* slot(std::size_t at);
  bool all_known() const { return unknown_ == 0; }
  bool slice_done() const;
  void find_operands(int place);
  void note_operands();
  void add_own(const std::byte* partial, std::span<std::byte* const> to, std::size_t at, std::size_t bytes);
  void pass_on(std::size_t at, std::size_t bytes);

  const Engine& memory_;
  const int rank_;
  const std::size_t most_segment_bytes_;
  std::vector<int> ranks_here_;
  std::vector<int> neighbour_of_;  // by rank: its place among ranks_here_, or -1
  int place_;                      // of this rank
  int slices_;
  int previous_ = -1, next_ = -1;  // the ranks before and after this one on its slice's chain

  Operation operation_;
  std::span<const double> weights_;
  bool plain_ = true;      // a mean of equal weights, or none
  double total_ = 0;       // of the weights
  std::size_t bytes_ = 0;  // of the whole
  Slice slice_{};          // in bytes
  std::size_t segment_ = 0;
  std::vector<Neighbour> neighbours_;                  // by place
  std::size_t unknown_ = 0, undone_ = 0, untold_ = 0;  // neighbours: not heard of, not done, not told all

  // Bytes of the slice: of the partial sum that arrived, has this rank's host in it, and has gone on; of the result
  // that is here, and has gone back.
  std::size_t arrived_ = 0, added_ = 0, sent_ = 0, final_ = 0, returned_ = 0;

  // Kept, so that a steady step allocates nothing.
  std::vector<std::byte> scratch_;
  std::vector<const std::byte*> in_, sources_;
  std::vector<std::byte*> out_, destinations_;
  std::vector<double> own_weights_;  // behind the partial sum's, 1
};

}  // namespace paceline
