#pragma once

#include <torch/torch.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/observe/recorder.h"
#include "paceline/train/replica.h"

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

/// What happens when a rank has no more data while others do; see join(). Ranks that end together are always fine.
enum class Uneven {
  GoOn,   ///< The others go on; the rank takes part with weight 0 and has their parameters and optimizers at the end.
  Stop,   ///< All stop after the last step for which every rank had data.
  Raise,  ///< All ranks throw Mismatch, which names the rank that ended.
};

/// How Reduction::Mean divides while some ranks have no more data.
enum class EndedRanks {
  LeaveOut,      ///< By the number of ranks that still have some.
  CountAsZeros,  ///< By the number of all ranks.
};

/// What happens when a rank's gradient holds NaN or infinity. All ranks do the same in the same step.
enum class NotFinite {
  Raise,      ///< All throw Aborted, which names rank, parameter and step.
  Skip,       ///< All drop the step's gradients (undefined until the next backward), so that optimizers find nothing to
              ///< do; the report says so.
  GoOn,       ///< Only the report says so.
  Unchecked,  ///< Nobody looks.
};

/// What becomes of buffers, e.g. batch norm's running statistics, which each rank updates by what it sees.
enum class Buffers {
  Own,        ///< Each rank keeps its own.
  Broadcast,  ///< All get rank 0's (where it has no more data, those of the first rank that has).
  Average,    ///< Floating-point buffers become their mean over ranks; others are broadcast.
};

/// The type in which gradients of 32 and 64 bits travel. They are rounded once on each rank, summed in float32, and
/// rounded once more; replicas stay equal bit for bit. What a Float16 cannot hold counts as not finite.
enum class Wire { AsIs, Float16, BFloat16 };

/// A bucket whose gradients are all there, for a communication of one's own.
struct GradientBucket {
  std::size_t index;     ///< All ranks come with the same buckets in the same order.
  torch::Tensor values;  ///< Of one dimension, over the bucket's memory.
  const Comm& comm;      ///< The report has its blocking calls, and operations that are started with `timed`.
  Reduction reduction;
  double weight;  ///< Of this rank; with 0 its values do not count. Of Weighted, values are divided by it already.
};
/// Starts the reduction of a bucket; what it returns is called at the end of backward, after which `values` hold the
/// result, the same on all ranks.
using BucketHook = std::function<std::function<void()>(const GradientBucket&)>;

struct DataParallelOptions {
  /// Gradients are reduced in buckets of about this size, in bytes. Smaller ones start earlier and stay in cache,
  /// larger ones cost fewer synchronisations. Does not change a bit of the result.
  std::size_t bucket_bytes = std::size_t{1} << 20;
  /// Stands in messages and in the report.
  std::string name = "model";
  Reduction reduction = Reduction::Mean;
  Uneven uneven = Uneven::GoOn;
  EndedRanks ended_ranks = EndedRanks::LeaveOut;
  /// Gradients are looked at just before they are sent off; in a world of one, after backward.
  NotFinite not_finite = NotFinite::Raise;
  /// Averagings between two comparisons of all ranks' parameters and optimizers, which throw Mismatch naming the first
  /// that differs and the rank. They are also compared in the averaging after one rank alone has changed a parameter in
  /// place, and by save(). 0 for none of these.
  std::uint64_t check_replicas_every = 100;
  /// After each averaging, never inside of forward. For once in a while, as before an evaluation: sync_buffers().
  Buffers buffers = Buffers::Own;
  Wire wire = Wire::AsIs;
  BucketHook reduce_bucket = {};
};

/// Parameters without a gradient, by name.
struct UnusedParameters {
  std::vector<std::string> here;        ///< This rank's backwards reached none of these.
  std::vector<std::string> everywhere;  ///< And of these not any rank's.
};

/// Keeps the replicas of a module in step: after loss.backward() returns, each parameter's grad() holds the mean over
/// all ranks (or what options.reduction says), the same bits everywhere.
///
/// Construction is collective: it checks that all ranks hold the same parameters and buffers (names, shapes, types;
/// Mismatch names the first that differs and two ranks) and sends rank 0's values to all. The hooks live on the
/// parameters, so call the module as ever. Construct it after the module has its final type, place and values
/// (torch::load and to() take the hooks away, which the next backward says), and keep both alive together. Only one
/// backward at a time, on the thread that constructed this; it may be destroyed on another. Each wrapped model
/// communicates by itself, so several may share `comm`; ranks must run their backwards in the same order. Models that
/// one backward reaches are averaged at its end, the one wrapped last first, in which order a rank without such a
/// backward calls average(). Of parameters that models share, the wrapper constructed first averages the gradients, so
/// these are the sum of all losses' means; both wrappers take the same ranks and Reduction, and the first lives as long
/// as the second. A backward that reaches no parameter on some rank averages nothing there: call average() instead. A
/// backward inside another one, as re-entrant checkpointing runs it, is part of that one, and what it reaches is
/// averaged at its end.
///
/// grad() is as libtorch would leave it: a gradient that is kept beyond zero_grad() keeps its values, memory that the
/// user has put there gets the mean in place. Sparse gradients become dense. Complex parameters are refused.
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

  /// Collective. For an optimizer that calls a closure as often as its loss tells it to, e.g. LBFGS: runs a closure in
  /// which one backward averages, and returns its loss as one process with all ranks' samples has it, the same bits on
  /// all ranks (as `reduction` says: the mean over ranks, the sum, or the weighted mean). So that all ranks decide
  /// alike. Optimizer<>::step(closure) does it; with an optimizer of libtorch's own:
  ///
  ///     optimizer.step([&] { return ddp.evaluate(closure); });
  torch::Tensor evaluate(const std::function<torch::Tensor()>& closure);

  /// Collective; after the loop over this rank's data. Takes part in the others' steps until all ranks are here, or
  /// does what options.uneven says. Returns on all ranks with the same parameters, buffers and optimizers (those that
  /// are a paceline::Optimizer of this model, with moments, counters and learning rates): where some ranks ended
  /// earlier, they get those of one that went on to the end, and all gradients are undefined. Takes part in the steps
  /// of this model only: where a loop trains several wrapped models, give all ranks the same number of batches.
  void join();
  /// Asks all ranks to stop after the step of this rank's next backward; they see it in stop_agreed().
  void request_stop();
  /// Whether all ranks stop after this step; the same on all of them in the same step. Until join().
  bool stop_agreed() const;

  /// Collective. Makes buffers equal now.
  void sync_buffers(Buffers how);

  /// How gradients travel, as the report names it: "none" (as they are), "float16", "bfloat16", or "hook" for a
  /// program's own communication.
  const char* codec() const;
  /// What this model is, how it is communicated, and what happened in the last step: some lines for a human.
  std::string explain() const;
  /// Of the last averaging.
  UnusedParameters unused() const;
  /// How many averagings were dropped (NotFinite::Skip, Uneven::Stop).
  std::uint64_t skipped_rounds() const;

  /// Collective. What differs between the replicas of ranks, parameters and optimizers, and on which ranks; nothing
  /// where all are equal. Reads all of them.
  std::optional<std::string> replica_difference() const;

  /// Optimizer<> makes itself known, so that it is compared, saved and handed on with the model.
  void attach(torch::optim::Optimizer& optimizer);
  void detach(torch::optim::Optimizer& optimizer);
  /// For files beside this one: all parameters and buffers, the optimizers, and whether all may be read now.
  const std::vector<torch::optim::Optimizer*>& optimizers() const;
  const Replica& replica() const;
  const std::vector<NamedTensor>& trained() const;

  /// How often gradients were averaged, also before load().
  std::uint64_t rounds() const;
  /// Backwards whose gradients are accumulated and not averaged, those of shared parameters included.
  std::uint32_t accumulated() const;
  /// load() calls it: there were so many averagings before. Drops gradients.
  void resume_at(std::uint64_t rounds);
  /// Of the last averaging: the sum of all ranks' weights (Reduction::Weighted), or how many ranks counted.
  double total_weight() const;

  /// When it was constructed.
  std::chrono::system_clock::time_point started() const;

  /// Throws Aborted, on all ranks, unless a backward has been averaged since this returned `rounds_before` (0 at
  /// first), and none has accumulated since. Optimizer<> calls it before it steps; returns what to pass next time.
  std::uint64_t require_averaged(std::uint64_t rounds_before, const torch::optim::Optimizer& optimizer) const;

  /// Throws InvalidArgument, naming the first that is not, unless all of an optimizer's parameters are of this model.
  /// Optimizer<> calls it, at each step.
  void require_parameters(const torch::optim::Optimizer& optimizer) const;

  /// Expires with this object, for what may outlive it.
  std::weak_ptr<const void> lifetime() const { return state_; }

 private:
  struct State;
  std::shared_ptr<State> state_;  // nobody else holds it
};

/// See no_sync().
class DistributedDataParallel::NoSync {
 public:
  NoSync(NoSync&& other) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync();

 private:
  friend class DistributedDataParallel;
  explicit NoSync(const std::shared_ptr<State>& state);
  std::weak_ptr<State> state_;
};

}  // namespace paceline
