#pragma once

#include <torch/torch.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/observe/recorder.h"

namespace paceline {

struct DataParallelOptions {
  /// Gradients are reduced in buckets of about this size, in bytes. Smaller ones start earlier and stay in cache,
  /// larger ones cost fewer synchronisations. Does not change a bit of the result.
  std::size_t bucket_bytes = std::size_t{1} << 20;
  /// Stands in messages and in the report.
  std::string name = "model";
};

/// Keeps the replicas of a module in step: after loss.backward() returns, each parameter's grad() holds the mean over
/// all ranks, the same bits everywhere.
///
/// Construction is collective: it checks that all ranks hold the same parameters and buffers (names, shapes, types;
/// Mismatch names the first that differs and two ranks) and sends rank 0's values to all. The hooks live on the
/// parameters, so call the module as ever. Construct it after the module has its final type and place, and keep both
/// alive together. Only one backward at a time, on the thread that constructed this. Each wrapped model communicates by
/// itself, so several may share `comm`; ranks must run their backwards in the same order, and each backward must reach
/// at least one parameter on every rank.
///
/// Within backward() the Errors of Comm can be thrown. A backward that ends in an exception of the user's leaves the
/// other ranks waiting, so the next backward, the optimizer's step() or the destructor aborts the communicator.
class DistributedDataParallel {
 public:
  DistributedDataParallel(torch::nn::Module& module, const Comm& comm, DataParallelOptions options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  const Comm& comm() const;
  const DataParallelOptions& options() const;
  Recorder& recorder() const;
  /// Elements of all parameters, shared ones once.
  std::size_t parameter_count() const;

  /// When it was constructed.
  std::chrono::system_clock::time_point started() const;

  /// Throws Aborted, on all ranks, unless a backward has been averaged since this returned `rounds_before` (0 at
  /// first). Optimizer<> calls it before it steps; returns what to pass next time.
  std::uint64_t require_averaged(std::uint64_t rounds_before) const;

  /// Throws InvalidArgument unless all of an optimizer's parameters are of this model. Optimizer<> calls it.
  void require_parameters(const std::vector<torch::Tensor>& of_optimizer) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace paceline
