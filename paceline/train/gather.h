#pragma once

#include <torch/torch.h>

#include <vector>

#include "paceline/comm/comm.h"

namespace paceline {

/// Collective. The tensors of all ranks, in rank order, on each rank: predictions, per-sample losses. Types must be the
/// same and sizes may differ in the first dimension. Throws Mismatch otherwise.
std::vector<torch::Tensor> gather(const Comm& comm, const torch::Tensor& tensor);

}  // namespace paceline
