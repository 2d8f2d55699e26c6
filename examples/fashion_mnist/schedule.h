#pragma once

#include <algorithm>
#include <cstddef>

namespace fashion_mnist {

/// A learning rate that grows for the first steps and then falls to 0, both linearly. Large batches need the former.
struct Schedule {
  double peak = 0.1;
  std::size_t steps = 0;
  std::size_t warmup = 100;  ///< At most a fifth of all steps.

  /// Of step 0 to steps - 1.
  double at(std::size_t step) const {
    const std::size_t rise = std::min(warmup, steps / 5);
    if (step < rise) return peak * static_cast<double>(step + 1) / static_cast<double>(rise + 1);
    return peak * static_cast<double>(steps - step) / static_cast<double>(steps - rise);
  }
};

}  // namespace fashion_mnist
