// What the ranks decide in a round. All of it follows from what every rank said in the step's header, so that all
// decide the same without another message.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "paceline/base/finite.h"
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
  const auto all = reducer.prologues();
  int ended = -1, active = -1;
  for (int rank = 0; rank < comm.world_size(); ++rank) {
    if (all[rank].flags & StepPrologue::kStop) stop_agreed = true;
    int& first = all[rank].flags & StepPrologue::kEnded ? ended : active;
    if (first < 0) first = rank;
  }
  if (ended < 0) return false;
  switch (options.uneven) {
    case Uneven::GoOn: break;
    case Uneven::Stop:
      stop_agreed = true;
      drop_gradients();
      ++skipped;
      if (!losses_follow()) return true;
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

/// A rank that has data; 0 where none has.
int DistributedDataParallel::State::first_active() const {
  const auto all = reducer.prologues();
  const auto active =
      std::find_if(all.begin(), all.end(), [](const StepPrologue& p) { return (p.flags & StepPrologue::kEnded) == 0; });
  return active == all.end() ? 0 : static_cast<int>(active - all.begin());
}

void DistributedDataParallel::State::judge_finite(bool dropped) {
  const auto all = reducer.epilogues();
  const auto bad = std::find_if(all.begin(), all.end(), [](const StepEpilogue& e) { return e.bad_parameter != 0; });
  if (bad == all.end()) return;
  const auto rank = static_cast<int>(bad - all.begin());
  const std::string evidence =
      fmt::format("rank {}'s gradient of parameter '{}' held NaN or infinity in step {} of model '{}'", rank,
                  parameters[bad->bad_parameter - 1].name, reducer.rounds() - 1, options.name);
  if (options.not_finite == NotFinite::Raise) {
    comm.fail({Fault::NotFinite,
               evidence + ". Lower the learning rate, clip gradients, or choose NotFinite::Skip or GoOn", comm.rank(),
               rank});
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
  const auto epilogues = reducer.epilogues();
  const StepPrologue* first = nullptr;
  std::uint64_t hash = 0;
  bool suspected = false;
  for (std::size_t rank = 0; rank < prologues.size(); ++rank) {
    if (prologues[rank].flags & StepPrologue::kEnded) continue;
    if (first == nullptr) first = &prologues[rank];
    if (hash == 0) hash = epilogues[rank].state_hash;
    suspected |= prologues[rank].changes != first->changes || epilogues[rank].state_hash != hash;
  }
  if (!suspected || options.check_replicas_every == 0) return;
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
