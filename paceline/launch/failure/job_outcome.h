#pragma once

#include <deque>
#include <string>

#include "paceline/base/error.h"
#include "paceline/launch/failure/worker_end.h"

namespace paceline::launch {

/// What a worker's end is called.
Fault fault_of(const WorkerEnd& end);

/// What the other ranks throw when a worker has ended this way: what it said itself if it was the cause, else what the
/// kernel said.
Error failure_for_others(const WorkerEnd& end);

/// Whether an Error ended it that was not caught: std::terminate() raises SIGABRT.
bool is_uncaught_error(const WorkerEnd& end);

/// What the user can do about it; empty if nothing is known. `last_errors` are the last lines of its stderr.
std::string hint_for(const WorkerEnd& end, const std::deque<std::string>& last_errors);

}  // namespace paceline::launch
