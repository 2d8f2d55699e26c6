#pragma once

#include <cstdlib>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "paceline/comm/run_ranks.h"

namespace paceline::test {

/// Runs `body` on `n` ranks that are threads, over `engine`, with a time limit that a broken test runs into soon.
inline void on_ranks(int n, ThreadEngine engine, const std::function<void(const Comm&)>& body,
                     std::shared_ptr<MessageFaults> faults = nullptr, Nanoseconds timeout = std::chrono::seconds(60)) {
  ThreadWorldOptions options;
  options.engine = engine;
  options.comm.timeout = timeout;
  options.ranks_per_host = {2, 3};
  options.faults = std::move(faults);
  run_ranks(n, body, options);
}

/// A seed for a property test: PACELINE_TEST_SEED, or a random one. Print it in each failure.
inline std::uint64_t seed() {
  if (const char* given = std::getenv("PACELINE_TEST_SEED")) return std::stoull(given);
  return std::random_device{}();
}

// With a sanitizer each case takes ten times as long, so fewer are tried.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// How many of `n` random cases to try.
constexpr int repeats(int n) { return kSanitized ? (n + 4) / 5 : n; }

/// Numbers of ranks to try.
inline std::vector<int> worlds() { return kSanitized ? std::vector{1, 2, 3, 6} : std::vector{1, 2, 3, 4, 5, 6, 7, 8}; }

inline std::string engine_label(ThreadEngine engine) {
  switch (engine) {
    case ThreadEngine::SharedMemory: return "SharedMemory";
    case ThreadEngine::Messages: return "Messages";
    case ThreadEngine::Tcp: return "Tcp";
    case ThreadEngine::Hosts: return "Hosts";
  }
  return "unknown";
}

}  // namespace paceline::test
