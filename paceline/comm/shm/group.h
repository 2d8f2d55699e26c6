#pragma once

#include <memory>
#include <string>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/comm/shm/control.h"
#include "paceline/comm/shm/segment.h"

namespace paceline {

class Store;

/// How the death of a peer's process is seen. Both are empty where ranks are threads.
struct PeerLink {
  UniqueFd socket;   // hangs up when the last process that has the other end is gone: children may have it too
  UniqueFd process;  // readable once the process has ended; empty where the system does not give one (other namespaces)
};

/// The segments of all ranks of a group, mapped here, and the means to notice that a peer has died.
struct ShmGroup {
  int rank = 0;
  std::vector<std::shared_ptr<Segment>> segments;  // by rank
  std::vector<PeerLink> links;                     // by rank

  int world_size() const { return static_cast<int>(segments.size()); }
  RankControl& control(int of) const { return *reinterpret_cast<RankControl*>(segments[of]->data()); }
  /// Bytes at the beginning of each segment that hold its RankControl.
  static std::size_t control_bytes();
};

/// Makes this rank's segment and exchanges it with the other processes of the group, which meet in `store` under
/// `name`: file descriptors go over Unix sockets (abstract names, same user only), which stay open as links.
/// Throws Timeout naming the ranks that did not come, System, or InvalidArgument if a rank is on another host.
ShmGroup connect_shm_group(Store& store, const std::string& name, int rank, int world_size, Deadline deadline);

/// The same for ranks that are threads: all of them use these mappings.
std::vector<std::shared_ptr<Segment>> make_thread_segments(int world_size);

}  // namespace paceline
