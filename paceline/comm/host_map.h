#pragma once

#include <string>
#include <vector>

#include "paceline/base/clock.h"

namespace paceline {

class Store;

/// Which ranks of a group share a host, that is, can map each other's memory.
struct HostMap {
  std::vector<std::vector<int>> hosts;  // each host's ranks in order; hosts in the order of their first ranks

  int host_of(int rank) const;
  /// The place of a rank among those of its host.
  int place_of(int rank) const;
  bool one_host() const { return hosts.size() == 1; }
  /// True where a host has several ranks.
  bool shares() const;
  /// True where ranks are numbered host by host.
  bool in_order() const;
  /// The least number of ranks that a host has.
  int least_ranks() const;
};

/// Finds out who shares a host by trying: each rank calls the others' Unix sockets, which reach only processes of the
/// same kernel and network namespace. The group meets in `store` under `name`. Collective.
/// Throws Timeout naming the ranks that did not come, System, or the job's failure.
HostMap find_hosts(Store& store, const std::string& name, int rank, int world_size, Deadline deadline);

}  // namespace paceline
