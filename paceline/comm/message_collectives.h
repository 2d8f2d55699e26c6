#pragma once

#include <vector>

#include "paceline/comm/engine.h"
#include "paceline/comm/signature.h"
#include "paceline/comm/transport.h"

namespace paceline {

/// The collectives over messages, each to all peers at once ("direct"). For N ranks with S bytes, all-reduce sends
/// 2 (N - 1) / N S in two rounds: slices to their owners, who add them up in rank order, and the sums back. The result
/// has the same bits as in shared memory.
///
/// Before any data, ranks exchange what they call, so that a difference is found before anything is combined.
class MessageCollectives {
 public:
  explicit MessageCollectives(Transport& transport) : transport_(transport) {}

  /// Blocks. Returns when the last rank was seen to enter the operation.
  Nanoseconds carry_out(const Operation& operation, std::uint64_t number, Deadline deadline);

 private:
  struct Header {
    Signature signature;
    double weight;
  };

  void agree(const Operation& operation, std::uint64_t number, Deadline deadline);
  void all_reduce(const Operation& operation, Deadline deadline);
  void reduce_scatter(const Operation& operation, Deadline deadline);
  void all_gather(const Operation& operation, Deadline deadline);
  void broadcast(const Operation& operation, Deadline deadline);
  /// Receives this rank's part from all peers and reduces it with its own `part` into `to`.
  void reduce_part(const Operation& operation, std::span<const Outgoing> outgoing, const std::byte* part, std::byte* to,
                   std::size_t count, Deadline deadline);

  Transport& transport_;
  std::vector<Header> headers_;  // of the current operation, by rank
};

/// Memory for engines that reach all of it.
Buffer allocate_on_heap(std::size_t bytes);

}  // namespace paceline
