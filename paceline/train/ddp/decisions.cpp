// What the ranks decide in a round. All of it follows from what every rank said in the step's header, so that all
// decide the same without another message.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "paceline/base/finite.h"
#include "paceline/sync/step_decisions.h"
#include "paceline/train/ddp/data_parallel_state.h"
#include "paceline/train/ddp/replica_comparison.h"
#include "paceline/train/plain_tensor.h"

namespace paceline {

void DistributedDataParallel::State::judge() {
  const bool dropped = judge_uneven();
  judge_finite(dropped);
  compare_replicas();
  if (reducer.rounds() > 1) return;
  for (const auto& [a, b] : reducer.duplicate_batches()) {
    recorder.add_finding(
        {.id = "same_batch",
         .severity = Severity::Error,
         .evidence = fmt::format("ranks {} and {} computed the same gradients in the first step", a, b),
         .fix = "they read the same samples: use paceline::DataLoader, or give each rank its part"});
  }
}

/// Whether the gradients were dropped.
bool DistributedDataParallel::State::judge_uneven() {
  const StepMembers members = members_of(reducer.prologues());
  stop_agreed |= members.stop;
  if (!members.first_ended) return false;
  const int ended = *members.first_ended, active = members.first_active.value_or(-1);
  switch (options.uneven) {
    case Uneven::GoOn: break;
    case Uneven::Stop:
      stop_agreed = true;
      drop_gradients();
      ++skipped;
      if (!members.loss_follows) return true;
      ended_early = true;  // an optimizer with a closure has counted this step all the same
      last_active = active;
      return true;
    case Uneven::Raise:
      comm.fail(
          {Fault::DataEnded,
           fmt::format("rank {} has no more data, while rank {} goes on (after {} averagings). Give all ranks the "
                       "same number of batches, or choose Uneven::GoOn or Stop",
                       ended, active, reducer.rounds() - 1),
           comm.rank(), ended});
  }
  ended_early = true;
  last_active = active;
  return false;
}

void DistributedDataParallel::State::judge_finite(bool dropped) {
  const auto bad = bad_gradient(reducer.epilogues());
  if (!bad) return;
  const std::string evidence =
      fmt::format("rank {}'s gradient of parameter '{}' held NaN or infinity in step {} of model '{}'", bad->rank,
                  parameters[bad->parameter].name, reducer.rounds() - 1, options.name);
  if (options.not_finite == NotFinite::Raise) {
    comm.fail({Fault::NotFinite,
               evidence + ". Lower the learning rate, clip gradients, or choose NotFinite::Skip or GoOn", comm.rank(),
               bad->rank});
  }
  recorder.add_finding({.id = "not_finite",
                        .severity = Severity::Error,
                        .evidence = evidence,
                        .fix = "lower the learning rate or clip gradients"});
  if (options.not_finite != NotFinite::Skip || dropped) return;
  drop_gradients();
  ++skipped;
}

// Optimizers find nothing to do. Memory of the user's own, into which the last backward went, is there again for the
// next one. (In a world of one any gradient may be such memory: what nobody else holds is not.)
void DistributedDataParallel::State::drop_gradients() {
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    torch::Tensor& gradient = parameters[index].tensor.mutable_grad();
    const bool own = users_own[index] && gradient.defined() && !is_in_slot(index) && compat::is_held(gradient);
    if (own) set_aside[index] = gradient;
    gradient.reset();
  }
}

// A world of one sends nothing off; its gradients are where libtorch put them.
void DistributedDataParallel::State::look_for_not_finite() {
  if (options.not_finite == NotFinite::Unchecked) return;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const torch::Tensor& gradient = parameters[index].tensor.grad();
    if (!gradient.defined()) continue;
    const torch::Tensor values = plain(gradient);
    const torch::Tensor dense = values.is_non_overlapping_and_dense() ? values : values.contiguous();
    if (!first_not_finite(gradient_dtype(parameters[index]), bytes_of(dense))) continue;
    end.bad_parameter = 1 + index;
    return;
  }
}

// When it is due, on ranks that have data. The others have not stepped with them.
void DistributedDataParallel::State::take_state_hash(std::uint32_t flags) {
  const std::uint64_t every = options.check_replicas_every;
  if (comm.world_size() == 1 || every == 0 || reducer.rounds() == 0 || reducer.rounds() % every != 0) return;
  if (flags & StepPrologue::kEnded) return;
  end.state_hash = ReplicaHashes::of(replica, optimizers).combined();
}

// Of what was changed in place since the last call: all ranks change the same parameters equally often. What goes past
// version counters, as libtorch's own optimizers do, is not counted.
std::uint64_t DistributedDataParallel::State::changes_of_parameters() {
  std::uint64_t versions_now = 0, place = 0;
  for (const NamedTensor& parameter : replica.parameters) {
    if (!parameter.tensor.is_inference()) versions_now += ++place * parameter.tensor._version();
  }
  return versions_now - std::exchange(versions_seen, versions_now);
}

// When hashes differ, or one rank has changed a parameter in place and others have not.
void DistributedDataParallel::State::compare_replicas() {
  const auto prologues = reducer.prologues();
  if (options.check_replicas_every == 0 || !may_have_drifted(prologues, reducer.epilogues())) return;
  const bool ended = prologues[static_cast<std::size_t>(comm.rank())].flags & StepPrologue::kEnded;
  const auto difference =
      difference_of_replicas(comm, ended ? ReplicaHashes{} : ReplicaHashes::of(replica, optimizers));
  if (!difference) return;
  comm.fail(
      {Fault::ReplicasDrifted,
       fmt::format("the replicas of model '{}' have drifted apart before step {}: {}. Something changes them on some "
                   "ranks only",
                   options.name, reducer.rounds() - 1, *difference),
       comm.rank()});
}

}  // namespace paceline
