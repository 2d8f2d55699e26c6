#pragma once

#include <cstddef>
#include <vector>

#include "paceline/tools/bench_operands.h"

namespace paceline::tools {

/// This rank's part of what a collective must do at the least, with no word to the others: the same kernel over as many
/// bytes, cut among the ranks in the same way. Reducing collectives read each slice from as many buffers as there are
/// ranks, and store it to as many as need it; moving ones copy.
///
/// The buffers are this rank's own: its slices of all ranks' buffers lie side by side in buffers of the same total
/// size.
class RooflineShare {
 public:
  RooflineShare(const BenchOptions& options, const BenchOperands& operands, const BenchRow& row, const Seat& seat);

  void carry_out() const;

 private:
  struct Copy {
    const std::byte* from;
    std::byte* to;
  };

  void add_reduction(const BenchOperands& operands, const BenchRow& row, const Seat& seat);
  void add_copies(const BenchOperands& operands, const BenchRow& row, const Seat& seat);

  const BenchOptions& options_;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> destinations_;
  std::vector<double> weights_;
  std::size_t count_ = 0;  // elements of the reduction
  std::vector<Copy> copies_;
  std::size_t copy_bytes_ = 0;  // of each
};

}  // namespace paceline::tools
