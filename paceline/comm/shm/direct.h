#pragma once

#include <vector>

#include "paceline/comm/operation.h"
#include "paceline/comm/shm/view.h"

namespace paceline {

/// Where one rank's operands lie; rides in its slot.
struct ShmOperands {
  std::uint64_t in_offset, out_offset;  // from the beginning of its segment
  std::uint64_t in_stride, out_stride;  // elements; for even parts
  std::uint64_t reach;                  // as Operation::reach
  std::uint64_t balance;                // comm/signature.h
  // In an uneven all_to_all, what it sends to each rank follows.
};

/// Collectives on memory that all ranks map: each rank does its share from and to where the data lies. After all have
/// done their shares, each has its result.
///
/// Reductions push in place: for a part of the elements, all ranks' inputs are added up in registers, in rank order,
/// and stored to all ranks' outputs: 2 N S bytes moved for N ranks with S bytes, the least possible where every rank
/// needs a result of its own. Moves pull from their peers' memory, a gather pushes.
class ShmDirect {
 public:
  explicit ShmDirect(const ShmView& view) : view_(view) {}

  /// Fills in the slot: where this rank's operands lie. Throws InvalidArgument for more ranks than a slot has room for.
  void put_operands(const Operation& operation, Slot& slot) const;
  /// Elements of the whole, or of each part, that all ranks' operands hold.
  std::size_t common_reach(const Operation& operation, std::uint64_t number) const;

  /// Reduces these elements of an AllReduce or Reduce to where they are wanted.
  void reduce_range(const Operation& operation, std::uint64_t number, std::size_t from, std::size_t count);
  /// This rank's share of any other collective, or of those by fixed slices. `reach` as common_reach() has it.
  void do_share(const Operation& operation, std::uint64_t number, std::size_t reach);
  /// False if some rank expects another number of elements than a peer sends it; for uneven all_to_all.
  bool counts_agree(const Operation& operation, std::uint64_t number) const;
  /// Throws Mismatch if this rank is one of those.
  void check_counts(const Operation& operation, std::uint64_t number) const;

 private:
  struct Peer;

  Peer peer(const Operation& operation, int rank, std::uint64_t number) const;
  void reduce_to(const Operation& operation, std::uint64_t number, std::size_t count);
  void reduce_scatter(const Operation& operation, std::uint64_t number, std::size_t reach);
  void all_to_all(const Operation& operation, std::uint64_t number, std::size_t reach) const;
  void swap_parts(const Operation& operation, std::uint64_t number, std::size_t reach) const;
  std::size_t part_bytes(const Operation& operation, int part, std::size_t reach) const;

  const ShmView& view_;
  // Scratch, kept so that a steady step allocates nothing.
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> destinations_;
  std::vector<double> weights_;
};

}  // namespace paceline
