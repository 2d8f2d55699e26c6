#include "paceline/launch/rank_list.h"

#include <fmt/format.h>

#include <algorithm>

namespace paceline::launch {

std::string join_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i > 0) text += ", ";
    text += last == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace paceline::launch
