#pragma once

#include <vector>

#include "paceline/comm/shm_group.h"

namespace paceline {

/// One rank's share of the collectives in shared memory, once all ranks have entered the operation. After all ranks
/// have done their shares, each has its result.
///
/// AllReduce pushes in place: rank r reduces slice r of all ranks' buffers, in registers and in rank order, and stores
/// it to slice r of all of them: 2 N S bytes moved for N ranks with S bytes, the least possible where every rank needs
/// a result of its own. The others pull from their peers' buffers. Inputs of up to Slot::kInlineBytes ride in the slot
/// and every rank reduces all of it for itself.
class ShmCollectives {
 public:
  explicit ShmCollectives(const ShmGroup& group) : group_(group) {}

  /// True where the input rides in the slot.
  static bool is_inline(const Operation& operation, int world_size);
  /// Bytes of this operation's input on one rank.
  static std::size_t input_bytes(const Operation& operation, int world_size);
  void do_share(const Operation& operation, std::uint64_t number);

 private:
  const std::byte* input(int peer, std::uint64_t number) const;
  void reduce_part(const Operation& operation, std::uint64_t number, std::size_t from, std::size_t count);
  void gather_weights(const Operation& operation, std::uint64_t number);
  void all_reduce(const Operation& operation, std::uint64_t number);
  void all_gather(const Operation& operation, std::uint64_t number) const;
  void broadcast(const Operation& operation, std::uint64_t number) const;

  const ShmGroup& group_;
  // Scratch, kept so that a steady step allocates nothing.
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> destinations_;
  std::vector<double> weights_;
};

}  // namespace paceline
