#include "paceline/train/seed.h"

#include <torch/torch.h>

namespace paceline {

void seed(const Comm& comm, std::uint64_t seed) {
  torch::manual_seed(seed);
  comm.set_seed(seed);
}

}  // namespace paceline
