#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "paceline/comm/comm.h"

namespace paceline {

struct SyncBatchNormOptions {
  std::int64_t num_features;
  double eps = 1e-5;
  /// Of the running statistics; none: their plain mean over all batches.
  std::optional<double> momentum = 0.1;
};

/// Batch norm over the batches of all ranks: forward, backward and running statistics are those of one process with the
/// whole batch, also where ranks have different numbers of samples, and some of them none in theirs. Takes (N, C) and
/// (N, C, ...), and has the parameters and buffers of torch::nn::BatchNorm, under the same names.
///
/// Alone it is ordinary batch norm. Once a module that contains it is wrapped by DistributedDataParallel, each forward
/// in training mode and its backward are collective: two small all-reduces and one. So all ranks need a batch in each
/// step; a rank that has none (see join()) gets an error that says so, as do the others. Statistics are summed in
/// double.
class SyncBatchNormImpl final : public torch::nn::Module {
 public:
  explicit SyncBatchNormImpl(std::int64_t num_features) : SyncBatchNormImpl(SyncBatchNormOptions{num_features}) {}
  explicit SyncBatchNormImpl(const SyncBatchNormOptions& options);

  torch::Tensor forward(const torch::Tensor& input);

  /// What it communicates by: `while_waiting` moves on what this rank has started elsewhere and says whether there
  /// still is any. DistributedDataParallel calls it; with null it is ordinary batch norm again.
  struct Link {
    Comm comm;
    std::function<bool()> while_waiting;
  };
  void connect(std::shared_ptr<const Link> link) { link_ = std::move(link); }
  bool connected() const { return link_ != nullptr; }

  torch::Tensor weight, bias, running_mean, running_var, num_batches_tracked;

 private:
  SyncBatchNormOptions options_;
  std::shared_ptr<const Link> link_;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace paceline
