#pragma once

#include <torch/torch.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/observe/recorder.h"

namespace paceline {

/// How the gradients of ranks, and of the backwards that they accumulate, become one.
enum class Reduction {
  /// The mean over ranks, each counting the same, of what each has accumulated (as in libtorch, the sum of its
  /// backwards). With equal batches and mean losses, what one process with the whole batch computes.
  Mean,
  /// The sum over ranks.
  Sum,
  /// The sum over ranks and backwards, divided by the sum of all their weights. Each loss is a sum over this rank's
  /// samples or tokens and set_weight() says how many: what one process over all of them computes, however they are
  /// spread. Zero gradients between optimizer steps.
  Weighted,
};

struct DataParallelOptions {
  /// Gradients are reduced in buckets of about this size, in bytes. Smaller ones start earlier and stay in cache,
  /// larger ones cost fewer synchronisations. Does not change a bit of the result.
  std::size_t bucket_bytes = std::size_t{1} << 20;
  /// Stands in messages and in the report.
  std::string name = "model";
  Reduction reduction = Reduction::Mean;
};

/// Keeps the replicas of a module in step: after loss.backward() returns, each parameter's grad() holds the mean over
/// all ranks (or what options.reduction says), the same bits everywhere.
///
/// Construction is collective: it checks that all ranks hold the same parameters and buffers (names, shapes, types;
/// Mismatch names the first that differs and two ranks) and sends rank 0's values to all. The hooks live on the
/// parameters, so call the module as ever. Construct it after the module has its final type and place, and keep both
/// alive together. Only one backward at a time, on the thread that constructed this. Each wrapped model communicates by
/// itself, so several may share `comm`; ranks must run their backwards in the same order. A backward that reaches no
/// parameter on some rank averages nothing there: call average() instead.
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

  /// Reduction::Weighted: how many samples or tokens the loss of the next backward is the sum over; 0 where this rank
  /// has none. Each backward needs one. Throws InvalidArgument unless it is finite and not negative.
  void set_weight(double weight);

  class NoSync;
  /// While it lives, backwards only accumulate, on this rank; the first one that begins after it averages all of it.
  /// It is the call of backward() that counts, not forward. All ranks do the same.
  ///
  ///     {
  ///       auto only_accumulate = ddp.no_sync();
  ///       loss(first).backward();
  ///     }
  ///     loss(second).backward();  // averages the sum of both
  [[nodiscard]] NoSync no_sync();
  /// From now on every `backwards`-th backward averages, those between only accumulate; averaged() says when. 1 at
  /// first. Throws InvalidArgument for 0.
  void accumulate(std::size_t backwards);
  /// Whether the gradients are averaged as they stand, so that an optimizer may step.
  bool averaged() const;
  /// Collective. Averages what has been accumulated, without a backward: where an epoch ends within accumulate(), or
  /// where no parameter takes part on this rank while it does on others.
  void average();

  /// How often gradients were averaged.
  std::uint64_t rounds() const;
  /// Of the last averaging: the sum of all ranks' weights (Reduction::Weighted), or how many ranks counted.
  double total_weight() const;

  /// When it was constructed.
  std::chrono::system_clock::time_point started() const;

  /// Throws Aborted, on all ranks, unless a backward has been averaged since this returned `rounds_before` (0 at
  /// first), and none has accumulated since. Optimizer<> calls it before it steps; returns what to pass next time.
  std::uint64_t require_averaged(std::uint64_t rounds_before) const;

  /// Throws InvalidArgument unless all of an optimizer's parameters are of this model. Optimizer<> calls it.
  void require_parameters(const std::vector<torch::Tensor>& of_optimizer) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// See no_sync(). Destroy before the model's wrapper.
class DistributedDataParallel::NoSync {
 public:
  NoSync(NoSync&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync();

 private:
  friend class DistributedDataParallel;
  explicit NoSync(State& state);
  State* state_;
};

}  // namespace paceline
