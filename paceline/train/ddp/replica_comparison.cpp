#include "paceline/train/ddp/replica_comparison.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "paceline/base/hash.h"
#include "paceline/train/plain_tensor.h"
#include "paceline/train/state/optimizer_state.h"

namespace paceline {
namespace {

std::uint64_t hash_of_values(const torch::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const torch::Tensor values = plain(tensor);
  return values.is_non_overlapping_and_dense() ? hash_of(bytes_of(values)) : hash_of(bytes_of(values.contiguous()));
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

ReplicaHashes ReplicaHashes::of(const Replica& replica, const std::vector<torch::optim::Optimizer*>& optimizers) {
  const torch::NoGradGuard no_grad;
  ReplicaHashes result;
  for (const NamedTensor& parameter : replica.parameters) {
    result.entries.push_back({"parameter '" + parameter.name + "'", hash_of_values(parameter.tensor)});
  }
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    const OptimizerState state = state_of(*optimizers[i], replica.parameters);
    result.entries.push_back(
        {fmt::format("the scalars of optimizer {} (learning rate, steps, options)", i), hash_of(state.scalars)});
    for (const NamedTensor& moment : state.tensors) {
      result.entries.push_back({"optimizer state '" + moment.name + "'", hash_of_values(moment.tensor)});
    }
  }
  return result;
}

std::uint64_t ReplicaHashes::combined() const {
  std::uint64_t combined = 1;
  for (const Entry& entry : entries) combined = hash_of(std::as_bytes(std::span(&entry.hash, 1)), combined);
  return combined == 0 ? 1 : combined;
}

std::optional<std::string> difference_of_replicas(const Comm& comm, const ReplicaHashes& own) {
  if (comm.world_size() == 1) return std::nullopt;
  const std::int64_t hash = own.entries.empty() ? 0 : static_cast<std::int64_t>(own.combined());
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.world_size()));
  comm.all_gather<std::int64_t>(std::span(&hash, 1), all);
  std::vector<int> ranks;
  for (int rank = 0; rank < comm.world_size(); ++rank) {
    if (all[rank] != 0) ranks.push_back(rank);
  }
  if (std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return all[rank] == all[ranks[0]]; }))
    return std::nullopt;

  std::string text;
  for (const auto& entry : own.entries) text += fmt::format("{}\t{}\n", entry.hash, entry.name);
  std::vector<std::istringstream> texts;
  for (std::string& theirs : comm.gather(text)) texts.emplace_back(std::move(theirs));
  for (bool more = true; more;) {
    std::vector<std::uint64_t> hashes;
    std::vector<std::string> names;
    for (const int rank : ranks) {
      std::uint64_t of_entry = 0;
      std::string name;
      texts[static_cast<std::size_t>(rank)] >> of_entry;
      texts[static_cast<std::size_t>(rank)].get();
      std::getline(texts[static_cast<std::size_t>(rank)], name);
      hashes.push_back(of_entry);
      names.push_back(name);
    }
    more = std::any_of(names.begin(), names.end(), [](const std::string& name) { return !name.empty(); });
    const auto other = std::find_if(names.begin(), names.end(), [&](const std::string& n) { return n != names[0]; });
    const bool same = std::all_of(hashes.begin(), hashes.end(), [&](std::uint64_t h) { return h == hashes[0]; });
    if (same && other == names.end()) continue;
    const std::string what = other == names.end() ? names[0] : names[0] + " on one rank and " + *other + " on another";
    return fmt::format("{} of {}", minority(hashes, ranks), what);
  }
  return "ranks hold different numbers of tensors";
}

}  // namespace paceline
