#include "paceline/sync/step_decisions.h"

#include <algorithm>

namespace paceline {
namespace {

bool ended(const StepPrologue& rank) { return (rank.flags & StepPrologue::kEnded) != 0; }

}  // namespace

StepMembers members_of(std::span<const StepPrologue> all) {
  StepMembers members;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    auto& first = ended(all[rank]) ? members.first_ended : members.first_active;
    if (!first) first = static_cast<int>(rank);
    members.stop |= (all[rank].flags & StepPrologue::kStop) != 0;
    members.loss_follows |= (all[rank].flags & StepPrologue::kLoss) != 0;
    members.weight += all[rank].weight;
  }
  return members;
}

std::optional<std::pair<int, int>> different_backwards(std::span<const StepPrologue> all) {
  const auto counts = [](const StepPrologue& rank) { return rank.backwards > 0; };
  const auto first = std::find_if(all.begin(), all.end(), counts);
  const auto other = std::find_if(
      first, all.end(), [&](const StepPrologue& rank) { return counts(rank) && rank.backwards != first->backwards; });
  if (other == all.end()) return std::nullopt;
  return std::pair(static_cast<int>(first - all.begin()), static_cast<int>(other - all.begin()));
}

std::optional<BadGradient> bad_gradient(std::span<const StepEpilogue> all) {
  const auto bad = std::find_if(all.begin(), all.end(), [](const StepEpilogue& e) { return e.bad_parameter != 0; });
  if (bad == all.end()) return std::nullopt;
  return BadGradient{static_cast<int>(bad - all.begin()), static_cast<std::size_t>(bad->bad_parameter - 1)};
}

bool may_have_drifted(std::span<const StepPrologue> before, std::span<const StepEpilogue> after) {
  const auto first = members_of(before).first_active;
  if (!first) return false;
  const auto at = static_cast<std::size_t>(*first);
  for (std::size_t rank = at; rank < before.size(); ++rank) {
    if (ended(before[rank])) continue;
    if (before[rank].changes != before[at].changes || after[rank].state_hash != after[at].state_hash) return true;
  }
  return false;
}

std::vector<std::pair<int, int>> same_gradients(std::span<const StepEpilogue> all) {
  std::vector<std::pair<int, int>> pairs;
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      if (all[a].gradient_hash == 0 || all[a].gradient_hash != all[b].gradient_hash) continue;
      pairs.emplace_back(static_cast<int>(a), static_cast<int>(b));
    }
  }
  return pairs;
}

}  // namespace paceline
