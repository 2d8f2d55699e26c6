// What a closure returns, as one process with the samples of all ranks has it. An optimizer that looks at it would else
// decide differently on each rank, and wait for gradients that nobody sends.
#include <fmt/format.h>

#include <algorithm>

#include "paceline/sync/step_decisions.h"
#include "paceline/train/ddp/data_parallel_state.h"

namespace paceline {
namespace {

/// What a rank says of its loss.
struct Told {
  double value = 0;
  double kind = kNone;

  static constexpr double kNone = 0;  ///< Its closure returned none.
  static constexpr double kLoss = 1;
  static constexpr double kEnded = 2;  ///< It has no more data.
};

std::vector<Told> exchange(const Comm& comm, Told own) {
  std::vector<Told> all(static_cast<std::size_t>(comm.world_size()));
  comm.run({.kind = Collective::AllGather,
            .dtype = Dtype::Float64,
            .count = sizeof own / sizeof(double),
            .in = reinterpret_cast<const std::byte*>(&own),
            .out = reinterpret_cast<std::byte*>(all.data()),
            .label = "a closure's loss"});
  return all;
}

}  // namespace

torch::Tensor DistributedDataParallel::State::evaluate(const std::function<torch::Tensor()>& closure) {
  loss_follows = comm.world_size() > 1;
  const std::unique_ptr<bool, void (*)(bool*)> until_it_ends(&loss_follows, [](bool* follows) { *follows = false; });
  return reduce_loss(closure());
}

torch::Tensor DistributedDataParallel::State::reduce_loss(const torch::Tensor& loss) {
  if (comm.world_size() == 1 && options.reduction != Reduction::Weighted) return loss;
  const torch::NoGradGuard no_grad;
  if (loss.defined() && loss.numel() != 1) {
    fail(ErrorCode::InvalidArgument,
         fmt::format("a closure returned a loss of {} elements on rank {}; it must be one number", loss.numel(),
                     comm.rank()));
  }
  const auto all = exchange(comm, loss.defined() ? Told{loss.item<double>(), Told::kLoss} : Told{});
  const auto none = std::find_if(all.begin(), all.end(), [](const Told& told) { return told.kind == Told::kNone; });
  const auto some = std::find_if(all.begin(), all.end(), [](const Told& told) { return told.kind == Told::kLoss; });
  if (some == all.end()) return loss;
  if (none != all.end()) {
    comm.fail({ErrorCode::Mismatch,
               fmt::format("the closure of rank {} returned a loss, but that of rank {} none", some - all.begin(),
                           none - all.begin()),
               comm.rank(), static_cast<int>(none - all.begin())});
  }
  double sum = 0;  // in the order of ranks, so that all get the same bits
  for (const Told& told : all) sum += told.value;
  const double weights = members_of(reducer.prologues()).weight;
  const bool divides = options.reduction != Reduction::Sum && weights > 0;
  return torch::full_like(loss, divides ? sum / weights : sum);
}

// A rank without data, in a round of others that look at their loss.
void DistributedDataParallel::State::take_part_in_loss() {
  if (members_of(reducer.prologues()).loss_follows) exchange(comm, {.value = 0, .kind = Told::kEnded});
}

}  // namespace paceline
