#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paceline/train/replica.h"

namespace paceline {

/// What must be equal on all ranks after a synchronous step, each with a hash of its values: parameters, and the state
/// of those optimizers whose state is known.
struct ReplicaHashes {
  struct Entry {
    std::string name;
    std::uint64_t hash;
  };
  std::vector<Entry> entries;

  static ReplicaHashes of(const Replica& replica, const std::vector<torch::optim::Optimizer*>& optimizers);
  /// Of all of them; never 0.
  std::uint64_t combined() const;
};

/// Collective. Says what differs and on which ranks, as "rank 2 differs from the others: parameter 'w'"; nothing where
/// all is equal. Ranks without entries only take part.
std::optional<std::string> difference_of_replicas(const Comm& comm, const ReplicaHashes& own);

}  // namespace paceline
