#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "paceline/comm/engine.h"

namespace paceline {

/// What the system knows about a rank's connections (TCP_INFO), over a whole run.
struct NetworkFacts {
  double worst_round_trip_s = 0;
  std::uint64_t retransmits = 0;  ///< Segments sent again.
  std::uint64_t bytes_sent = 0, bytes_received = 0;

  NetworkFacts& operator+=(const NetworkFacts& more);
};

/// Nothing where there are no connections.
std::optional<NetworkFacts> network_facts(const std::vector<LinkInfo>& links);

}  // namespace paceline
