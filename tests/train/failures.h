#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/world.h"

namespace paceline::test {

/// What `body` throws on each of `n` ranks, "" for nothing.
inline std::vector<std::string> failures(int n, const std::function<void(const Comm&)>& body) {
  std::vector<std::string> messages(static_cast<std::size_t>(n));
  try {
    on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      try {
        body(comm);
      } catch (const std::exception& error) {
        messages[static_cast<std::size_t>(comm.rank())] = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  return messages;
}

inline void expect_all_say(const std::vector<std::string>& messages, const std::vector<std::string>& parts) {
  for (const std::string& message : messages) {
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << "\nin: " << message;
  }
}

}  // namespace paceline::test
