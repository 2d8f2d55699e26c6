#include "paceline/launch/failure/standstill.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "paceline/launch/rank_list.h"

namespace paceline::launch {
namespace {

bool may_complete(const OperationView& operation, const std::vector<RankView>& views);

}  // namespace

std::optional<std::string> standstill(const std::vector<RankView>& views, Nanoseconds at, Nanoseconds long_enough) {
  std::vector<std::pair<std::string, std::vector<int>>> waiting;  // by operation
  for (const RankView& view : views) {
    const OperationView* const in = view.waiting();
    if (view.ended || view.unclear || in == nullptr || at - in->waits_from < long_enough) return std::nullopt;
    if (may_complete(*in, views)) return std::nullopt;
    const auto same =
        std::find_if(waiting.begin(), waiting.end(), [&](const auto& other) { return other.first == in->text; });
    if (same == waiting.end()) waiting.push_back({in->text, {view.rank}});
    else same->second.push_back(view.rank);
  }
  if (waiting.empty()) return std::nullopt;
  std::string text;
  for (const auto& [operation, ranks] : waiting) {
    text += fmt::format("{}{} wait{} in {}", text.empty() ? "" : ", ", join_ranks(ranks), ranks.size() == 1 ? "s" : "",
                        operation);
  }
  return fmt::format(
      "all ranks wait for each other in operations that the others do not enter, so none can go on: {}. "
      "All ranks must make the same calls in the same order",
      text);
}

namespace {

/// Whether all ranks of its communicator have entered it, as far as is known.
bool may_complete(const OperationView& operation, const std::vector<RankView>& views) {
  std::uint64_t members = 0, entered = 0;
  for (const RankView& view : views) {
    for (const CommunicatorView& one : view.communicators) {
      if (one.id != operation.communicator_id) continue;
      members = std::max(members, one.members);
      if (one.entered >= operation.number) ++entered;
    }
  }
  return entered >= members;  // also where nothing is known of it
}

}  // namespace
}  // namespace paceline::launch
