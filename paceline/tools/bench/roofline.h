#pragma once

#include <cstddef>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/tools/bench/layout.h"
#include "paceline/tools/bench/operands.h"

namespace paceline::tools {

/// What a collective must do at the least: the same kernel over the same buffers, each rank its share of it, with no
/// word to the others. Reducing collectives read each slice from all ranks' inputs and store it to all outputs that
/// need it; moving ones copy what does not lie there yet, and parts that change places are swapped by one of the two
/// ranks.
class Roofline {
 public:
  /// This rank's share of one row.
  class Share {
   public:
    void run() const;

   private:
    friend class Roofline;
    struct Move {
      std::byte* from;
      std::byte* to;
    };

    Dtype dtype_ = Dtype::UInt8;
    ReduceOp reduce_ = ReduceOp::Sum;
    std::vector<const std::byte*> sources_;
    std::vector<std::byte*> destinations_;
    std::vector<double> weights_;
    std::size_t count_ = 0;  // elements of the reduction
    std::vector<Move> copies_, swaps_;
    std::size_t move_bytes_ = 0;  // of each
  };

  /// Collective. `operands` lie in memory of Comm::allocate(), on an engine whose ranks see each other's.
  Roofline(const Comm& comm, const BenchOptions& options, const BenchOperands& operands);

  Share share(const BenchRow& row) const;

 private:
  OperandSpans of(int rank, const BenchRow& row) const;
  void add_reduction(Share& share, const BenchRow& row) const;
  void add_copies(Share& share, const BenchRow& row) const;

  const BenchOptions& options_;
  int rank_, world_size_;
  std::vector<std::byte*> first_, second_;  // buffers by rank
};

}  // namespace paceline::tools
