#pragma once

#include <string>
#include <vector>

namespace paceline::launch {

/// "rank 3" or "ranks 0-2, 5".
std::string join_ranks(std::vector<int> ranks);

}  // namespace paceline::launch
