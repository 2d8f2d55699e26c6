#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "paceline/base/dtype.h"
#include "paceline/base/kernels.h"

namespace paceline::tools {

/// Inputs whose results are known exactly: small whole numbers, different for each rank, that repeat after a prime
/// number of elements, so that values that land in a wrong place are seen.
class Pattern {
 public:
  Pattern(Dtype dtype, ReduceOp reduce, int world_size);

  /// Writes the elements from `first` on of rank `rank`'s input.
  void write(std::span<std::byte> to, int rank, std::size_t first) const;
  /// How many elements of `actual` are not what rank `rank`'s input has from `first` on.
  std::size_t count_different(std::span<const std::byte> actual, int rank, std::size_t first) const;
  /// How many elements of `actual` are not what all ranks' inputs from `first` on reduce to. Exact, but for means of
  /// floating-point types, which may be off by one in the last place.
  std::size_t count_wrong_reduced(std::span<const std::byte> actual, std::size_t first) const;

 private:
  using Tile = std::vector<std::byte>;  // one period

  std::size_t count_against(const Tile& tile, std::span<const std::byte> actual, std::size_t first,
                            double tolerance) const;

  Dtype dtype_;
  std::size_t element_;  // bytes
  double mean_tolerance_ = 0;
  std::vector<Tile> inputs_;  // by rank
  Tile reduced_;
};

}  // namespace paceline::tools
