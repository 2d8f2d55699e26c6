#pragma once

#include <signal.h>
#include <sys/types.h>

#include "paceline/launch/options.h"

namespace paceline::launch {

/// The process that runs the job: starts the workers, prints their output, ends the job when a worker fails, when a
/// signal says so or when the process `launcher` dies, and leaves no process behind. `mask` is the signal mask for
/// workers; the caller has blocked what BlockedSignals blocks. Returns the job's exit code.
int run_supervisor(const RunOptions& options, pid_t launcher, const sigset_t& mask);

}  // namespace paceline::launch
