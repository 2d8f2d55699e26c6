#pragma once

#include "paceline/train/data_parallel.h"

namespace paceline {

/// Scales the averaged gradients of a model so that their norm, that of all of them as one vector, is at most
/// `max_norm`; returns what it was. The factor is max_norm / (norm + 1e-6), as torch::nn::utils::clip_grad_norm_ has
/// it; `norm_type` is 2 or infinity. Sums are taken in double and in the same order everywhere, so all ranks scale by
/// the same bits. Not collective.
///
/// Throws InvalidArgument where the gradients are not averaged (inside no_sync() or accumulate()), for other norm
/// types, and for a norm that is NaN or infinite.
double clip_grad_norm(DistributedDataParallel& ddp, double max_norm, double norm_type = 2);

}  // namespace paceline
