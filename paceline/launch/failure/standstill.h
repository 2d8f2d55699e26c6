#pragma once

#include <optional>
#include <string>
#include <vector>

#include "paceline/comm/status/status_view.h"

namespace paceline::launch {

/// Why no rank can ever go on, if that is so: each of them has waited for `long_enough` at least, in an operation that
/// some rank of its communicator has not entered, and that rank waits elsewhere. `views` are of all ranks of the job;
/// they may have been taken at different times, if those lie within `long_enough`. Nothing where a rank computes, or
/// may do something that its list does not show.
std::optional<std::string> standstill(const std::vector<RankView>& views, Nanoseconds at, Nanoseconds long_enough);

}  // namespace paceline::launch
