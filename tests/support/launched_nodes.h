// `paceline run` over several hosts, which are all this one here: launchers that meet over loopback.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/launched_job.h"

namespace paceline {

using Words = std::vector<std::string>;

inline Words node(int rank, int nodes, const std::string& rendezvous, const Words& more = {}) {
  Words words{"--nnodes", std::to_string(nodes), "--node-rank", std::to_string(rank), "--rendezvous", rendezvous};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline Words coordinator(int nodes, const Words& more = {}) { return node(0, nodes, "127.0.0.1:0", more); }

/// Where node 0 says that it listens.
inline std::string rendezvous_of(Job& zero) {
  const std::string mark = "listens at ";
  std::size_t at = std::string::npos, end = std::string::npos;
  const auto said = eventually([&] {
    zero.read_some();
    at = zero.err().find(mark);
    end = at == std::string::npos ? at : zero.err().find(' ', at + mark.size());
    return end != std::string::npos;
  });
  if (!said) throw std::runtime_error("node 0 does not say where it listens: " + zero.err());
  return zero.err().substr(at + mark.size(), end - at - mark.size());
}

inline void expect_nothing_left(std::initializer_list<Job*> jobs) {
  for (Job* job : jobs) EXPECT_TRUE(job->leaves_nothing());
}

}  // namespace paceline
