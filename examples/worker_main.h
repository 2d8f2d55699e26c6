#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <string>

#include "paceline/comm/comm.h"

/// What main() of a training program does: joins the job, calls `work(comm)`, and returns the exit code. The other
/// ranks end with this one's error as their cause.
template <class Work>
int worker_main(const char* program, Work work) {
  std::optional<paceline::Comm> comm;
  try {
    comm = paceline::Comm::from_env();
    work(*comm);
    return 0;
  } catch (const std::exception& error) {
    const std::string what = error.what();
    const auto cause = what.substr(0, what.find('\n'));  // libtorch adds a stack trace
    if (comm) comm->abort(cause);
    fmt::print(stderr, "{}: {}\n", program, cause);
    return 1;
  }
}
