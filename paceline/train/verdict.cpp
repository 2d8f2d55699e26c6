// What the ranks decide in a round. All of it follows from what every rank said in the step's header, so that all
// decide the same without another message.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "paceline/base/finite.h"
#include "paceline/base/hash.h"
#include "paceline/train/data_parallel_state.h"
#include "paceline/train/optimizer_state.h"

namespace paceline {
namespace {

std::span<const std::byte> bytes_of(const torch::Tensor& dense) {
  return {static_cast<const std::byte*>(dense.data_ptr()), dense.nbytes()};
}

std::uint64_t hash_of_values(const torch::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  return tensor.is_non_overlapping_and_dense() ? hash_of(bytes_of(tensor)) : hash_of(bytes_of(tensor.contiguous()));
}

/// "rank 2", or "ranks 0 and 1" where there is no majority.
std::string minority(const std::vector<std::uint64_t>& of_ranks, const std::vector<int>& ranks) {
  std::map<std::uint64_t, std::vector<int>> groups;
  for (std::size_t i = 0; i < ranks.size(); ++i) groups[of_ranks[i]].push_back(ranks[i]);
  std::size_t largest = 0;
  for (const auto& [hash, members] : groups) largest = std::max(largest, members.size());
  const auto majorities =
      std::count_if(groups.begin(), groups.end(), [&](const auto& g) { return g.second.size() == largest; });
  std::vector<int> named;
  for (const auto& [hash, members] : groups) {
    if (majorities > 1 || members.size() < largest) named.insert(named.end(), members.begin(), members.end());
  }
  std::sort(named.begin(), named.end());
  if (majorities > 1) return fmt::format("ranks {} hold different values", fmt::join(named, ", "));
  return fmt::format("{} {} from the others", fmt::join(named, ", "), named.size() == 1 ? "differs" : "differ")
      .insert(0, named.size() == 1 ? "rank " : "ranks ");
}

}  // namespace

void DistributedDataParallel::State::judge() {
  const bool dropped = judge_uneven();
  judge_finite(dropped);
  compare_states();
  if (reducer.rounds() > 1) return;
  for (const auto& [a, b] : reducer.twins()) {
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

// Optimizers find nothing to do.
void DistributedDataParallel::State::drop_gradients() {
  for (const NamedTensor& parameter : parameters) parameter.tensor.mutable_grad().reset();
}

// A world of one sends nothing off; its gradients are where libtorch put them.
void DistributedDataParallel::State::look_for_not_finite() {
  if (options.not_finite == NotFinite::Unchecked) return;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const torch::Tensor& gradient = parameters[index].tensor.grad();
    if (!gradient.defined() || gradient.layout() != torch::kStrided) continue;
    const torch::Tensor dense = gradient.is_non_overlapping_and_dense() ? gradient : gradient.contiguous();
    if (!first_not_finite(gradient_dtype(parameters[index]), bytes_of(dense))) continue;
    end.bad_parameter = 1 + index;
    return;
  }
}

// When it is due, on ranks that have data. The others have not stepped with them.
void DistributedDataParallel::State::take_state_hash(std::uint32_t flags) {
  const std::uint64_t every = options.check_replicas_every;
  if (comm.world_size() == 1 || every == 0 || reducer.rounds() == 0 || reducer.rounds() % every != 0) return;
  state_hashes.clear();
  if (flags & StepPrologue::kEnded) return;
  for (const NamedTensor& parameter : replica.parameters) {
    state_hashes.emplace_back("parameter '" + parameter.name + "'", hash_of_values(parameter.tensor));
  }
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    const OptimizerState state = state_of(*optimizers[i], replica.parameters);
    state_hashes.emplace_back(fmt::format("the scalars of optimizer {} (learning rate, steps, options)", i),
                              hash_of(state.scalars));
    for (const NamedTensor& moment : state.tensors) {
      state_hashes.emplace_back("optimizer state '" + moment.name + "'", hash_of_values(moment.tensor));
    }
  }
  end.state_hash = 1;
  for (const auto& [name, hash] : state_hashes) {
    end.state_hash = hash_of(std::as_bytes(std::span(&hash, 1)), end.state_hash);
  }
  if (end.state_hash == 0) end.state_hash = 1;  // 0 means that it was not taken
}

void DistributedDataParallel::State::compare_states() {
  const auto all = reducer.epilogues();
  std::vector<int> ranks;
  bool differ = false;
  for (int rank = 0; rank < comm.world_size(); ++rank) {
    if (all[rank].state_hash == 0) continue;
    differ |= !ranks.empty() && all[rank].state_hash != all[ranks[0]].state_hash;
    ranks.push_back(rank);
  }
  if (!differ) return;
  std::string own;
  for (const auto& [name, hash] : state_hashes) own += fmt::format("{}\t{}\n", hash, name);
  std::vector<std::istringstream> texts;
  for (std::string& text : comm.gather(own)) texts.emplace_back(std::move(text));
  std::string what = "the number of tensors";
  std::string who = "ranks hold different ones";
  for (bool found = false, more = true; !found && more;) {
    std::vector<std::uint64_t> hashes;
    std::vector<std::string> names;
    for (const int rank : ranks) {
      std::uint64_t hash = 0;
      std::string name;
      texts[static_cast<std::size_t>(rank)] >> hash;
      texts[static_cast<std::size_t>(rank)].get();
      std::getline(texts[static_cast<std::size_t>(rank)], name);
      hashes.push_back(hash);
      names.push_back(name);
    }
    more = std::any_of(names.begin(), names.end(), [](const std::string& name) { return !name.empty(); });
    const auto other = std::find_if(names.begin(), names.end(), [&](const std::string& n) { return n != names[0]; });
    const bool same = std::all_of(hashes.begin(), hashes.end(), [&](std::uint64_t h) { return h == hashes[0]; });
    if (same && other == names.end()) continue;
    found = true;
    what = other == names.end() ? names[0] : names[0] + " on one rank and " + *other + " on another";
    who = minority(hashes, ranks);
  }
  comm.fail(
      {Fault::ReplicasDrifted,
       fmt::format("the replicas of model '{}' have drifted apart before step {}: {} of {}. Something changes them "
                   "on some ranks only",
                   options.name, reducer.rounds() - 1, who, what),
       comm.rank()});
}

}  // namespace paceline
