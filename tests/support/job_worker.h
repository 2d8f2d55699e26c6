// What workers of a Job do, for Worker tests in the binary that starts the job.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <functional>
#include <vector>

#include "paceline/comm/comm.h"

namespace paceline {

/// As a program should: an error ends this rank and, by abort(), the others. Prints "pid P" once it has joined, and
/// "heard: " with an error, with which the process ends.
inline void as_worker(const std::function<void(const Comm&)>& body) {
  try {
    const Comm comm = Comm::from_env();
    fmt::print("pid {}\n", ::getpid());
    std::fflush(stdout);
    try {
      body(comm);
    } catch (const std::exception& error) {
      comm.abort(error.what());
      throw;
    }
  } catch (const std::exception& error) {
    fmt::print("heard: {}\n", error.what());
    std::fflush(nullptr);
    ::_exit(1);
  }
}

inline void sum(const Comm& comm, std::size_t count = 3) {
  std::vector<float> data(count, 1);
  comm.all_reduce<float>(data);
}

}  // namespace paceline
