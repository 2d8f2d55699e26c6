#pragma once

#include <cstdint>

#include "paceline/comm/comm.h"

namespace paceline {

/// Seeds libtorch's CPU generator: modules built from here on start with the same values on all ranks. Wrapping one in
/// DistributedDataParallel then gives each rank its own stream for dropout and augmentation, made from `seed` and the
/// rank.
void seed(const Comm& comm, std::uint64_t seed);

}  // namespace paceline
