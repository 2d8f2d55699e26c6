#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "paceline/sync/step_header.h"

namespace paceline {

// What ranks decide by each other's headers: functions of what all of them said, so that all decide the same without
// another message. Headers are in the order of ranks.

/// What the ranks of a step have said of themselves before it.
struct StepMembers {
  std::optional<int> first_active;  ///< The first rank that has data.
  std::optional<int> first_ended;   ///< The first that has none any more.
  bool stop = false;                ///< Some rank asks all to stop after this step.
  bool loss_follows = false;        ///< Some rank will exchange its loss after this step.
  double weight = 0;                ///< The sum of theirs.
};
StepMembers members_of(std::span<const StepPrologue> all);

/// Two ranks that have added up the gradients of different numbers of backwards, of those that had any.
std::optional<std::pair<int, int>> different_backwards(std::span<const StepPrologue> all);

/// The first rank with a gradient that is not finite, and the parameter's index.
struct BadGradient {
  int rank;
  std::size_t parameter;
};
std::optional<BadGradient> bad_gradient(std::span<const StepEpilogue> all);

/// Whether the replicas of ranks that have data may differ: their hashes do, or some have changed parameters in place
/// that others have not.
bool may_have_drifted(std::span<const StepPrologue> before, std::span<const StepEpilogue> after);

/// Pairs of ranks that computed the same gradients, of those that have hashed some.
std::vector<std::pair<int, int>> same_gradients(std::span<const StepEpilogue> all);

}  // namespace paceline
