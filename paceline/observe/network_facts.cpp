#include "paceline/observe/network_facts.h"

#include <algorithm>

namespace paceline {

NetworkFacts& NetworkFacts::operator+=(const NetworkFacts& more) {
  worst_round_trip_s = std::max(worst_round_trip_s, more.worst_round_trip_s);
  retransmits += more.retransmits;
  bytes_sent += more.bytes_sent;
  bytes_received += more.bytes_received;
  return *this;
}

std::optional<NetworkFacts> network_facts(const std::vector<LinkInfo>& links) {
  if (links.empty()) return std::nullopt;
  NetworkFacts facts;
  for (const LinkInfo& link : links)
    facts += {link.round_trip_s, link.retransmits, link.bytes_sent, link.bytes_received};
  return facts;
}

}  // namespace paceline
