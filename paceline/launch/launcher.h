#pragma once

#include "paceline/launch/options.h"

namespace paceline::launch {

/// Runs a job to its end and returns the exit code.
///
/// Two processes see to it that no process survives the job, whichever of the two is killed. This one, the launcher, is
/// what the user started: it passes signals on and waits. Its child, the supervisor, owns the store, the workers and
/// their output. Both are subreapers, so whatever a worker starts stays below them, in any process group or session.
int run_launcher(const RunOptions& options);

}  // namespace paceline::launch
