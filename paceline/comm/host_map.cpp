#include "paceline/comm/host_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "paceline/base/error.h"
#include "paceline/net/unix_socket.h"
#include "paceline/store/exchange.h"
#include "paceline/store/store.h"

namespace paceline {

int HostMap::host_of(int rank) const {
  const auto has = [&](const std::vector<int>& ranks) { return std::binary_search(ranks.begin(), ranks.end(), rank); };
  return static_cast<int>(std::find_if(hosts.begin(), hosts.end(), has) - hosts.begin());
}

int HostMap::place_of(int rank) const {
  const std::vector<int>& ranks = hosts[static_cast<std::size_t>(host_of(rank))];
  return static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

bool HostMap::shares() const {
  return std::any_of(hosts.begin(), hosts.end(), [](const auto& ranks) { return ranks.size() > 1; });
}

bool HostMap::in_order() const {
  int next = 0;
  for (const auto& ranks : hosts) {
    for (const int rank : ranks) {
      if (rank != next++) return false;
    }
  }
  return true;
}

int HostMap::least_ranks() const {
  const auto least =
      std::min_element(hosts.begin(), hosts.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  return static_cast<int>(least->size());
}

HostMap find_hosts(Store& store, const std::string& name, int rank, int world_size, Deadline deadline) {
  const UnixListener listener(SOCK_SEQPACKET, SOMAXCONN);
  const auto sockets = meet(store, "host/" + name, name, rank, world_size, listener.name(), deadline);
  // The lowest rank that this one reaches; that one reaches no lower one either.
  int first = 0;
  // A full queue is one of this host, too.
  const auto reaches = [&](int peer) {
    return call_unix_socket(sockets[static_cast<std::size_t>(peer)], Deadline(Nanoseconds(0))) || errno == EAGAIN;
  };
  while (first < rank && !reaches(first)) ++first;
  const auto firsts = meet(store, "host/" + name + "/first", name, rank, world_size, std::to_string(first), deadline);
  const auto first_of = [&](int peer, const std::string& said) {
    int lowest = -1;
    const char* const end = said.data() + said.size();
    if (std::from_chars(said.data(), end, lowest).ptr == end && lowest >= 0 && lowest <= peer) return lowest;
    throw Error(ErrorCode::Corrupt,
                fmt::format("joining '{}': rank {} says that \"{}\" is the first rank of its host", name, peer,
                            said.substr(0, 100)),
                rank, peer);
  };
  std::map<int, std::vector<int>> by_first;
  for (int peer = 0; peer < world_size; ++peer) {
    by_first[first_of(peer, firsts[static_cast<std::size_t>(peer)])].push_back(peer);
  }
  HostMap map;
  for (auto& [lowest, ranks] : by_first) map.hosts.push_back(std::move(ranks));
  return map;
}

}  // namespace paceline
