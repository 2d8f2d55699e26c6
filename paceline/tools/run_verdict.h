#pragma once

#include <string>

#include "paceline/base/error.h"
#include "paceline/tools/run_report.h"

namespace paceline::tools {

/// What a worker's end is called.
Fault fault_of(const WorkerEnd& end);

/// What the other ranks throw when a worker has ended this way: what it said itself if it was the cause, else what the
/// kernel said.
Error failure_for_others(const WorkerEnd& end);

/// What the user can do about it; empty if nothing is known.
std::string hint_for(const WorkerEnd& end);

}  // namespace paceline::tools
