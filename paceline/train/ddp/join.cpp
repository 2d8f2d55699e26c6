#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "paceline/train/ddp/data_parallel_state.h"
#include "paceline/train/state/optimizer_state.h"
#include "paceline/train/steps.h"

namespace paceline {
namespace {

/// A text of `root`'s on all ranks.
std::string broadcast_text(const Comm& comm, std::string text, int root) {
  auto length = static_cast<std::int64_t>(text.size());
  comm.broadcast<std::int64_t>(std::span(&length, 1), root);
  text.resize(static_cast<std::size_t>(length));
  comm.broadcast(Dtype::UInt8, std::as_writable_bytes(std::span(text)), root);
  return text;
}

}  // namespace

void DistributedDataParallel::State::join() {
  if (in_backward) fail_abandoned();
  comm.timeline().pause();
  if (!batch_norms.empty() && !stop_agreed) require_all_ended();
  while (!stop_agreed) {
    const torch::NoGradGuard no_grad;
    look_at_gradients();
    begin_round(StepPrologue::kEnded);
    const auto all = reducer.meet();
    const auto ended = [](const StepPrologue& rank) { return (rank.flags & StepPrologue::kEnded) != 0; };
    if (std::all_of(all.begin(), all.end(), ended)) {
      reducer.dismiss();
      break;
    }
    if (backwards == 0) drop_gradients();  // those of this rank's last step are no part of the others' next
    finish_round();
    take_part_in_loss();
  }
  if (ended_early) adopt_state(last_active);
  changes_of_parameters();  // adopting is none
  ended_early = stop_agreed = stop_requested = false;
}

// A rank in forward waits for the statistics of all. It meets this operation there and is told so.
void DistributedDataParallel::State::require_all_ended() {
  const std::uint8_t here = 1;
  std::vector<std::uint8_t> all(static_cast<std::size_t>(comm.world_size()));
  batch_norm_link->comm.run({.kind = Collective::AllGather,
                             .dtype = Dtype::UInt8,
                             .count = 1,
                             .in = reinterpret_cast<const std::byte*>(&here),
                             .out = reinterpret_cast<std::byte*>(all.data()),
                             .label = "no more batches"});
}

// Its learning rates, moments and steps came from a loop that this rank was no part of.
void DistributedDataParallel::State::adopt_state(int root) {
  const torch::NoGradGuard no_grad;
  broadcast_replica(comm, replica, root);
  for (torch::optim::Optimizer* optimizer : optimizers) {
    OptimizerState state;
    if (comm.rank() == root) state = whole_state_of(*optimizer, replica.parameters);
    state.scalars = broadcast_text(comm, std::move(state.scalars), root);
    const std::string layout = broadcast_text(comm, layout_of(state.tensors), root);
    if (comm.rank() != root) state.tensors = tensors_of(layout);
    broadcast_tensors(comm, state.tensors, root);
    if (comm.rank() != root) set_state(*optimizer, replica.parameters, state);
    const std::string unsaved = broadcast_text(comm, state.unsaved, root);
    if (unsaved.empty()) continue;
    recorder.add_finding({.id = "optimizer_not_handed_on",
                          .severity = Severity::Warning,
                          .evidence = fmt::format("some ranks ended early, and go on with a state of the optimizer {} "
                                                  "that is not rank {}'s",
                                                  unsaved, root),
                          .fix = "override torch::optim::Optimizer::save() and load() there"});
  }
  drop_gradients();
}

}  // namespace paceline
