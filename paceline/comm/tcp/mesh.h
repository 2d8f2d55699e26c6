#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/base/unique_fd.h"
#include "paceline/comm/tcp/options.h"

namespace paceline {

class Store;

/// The connections of a rank to all others, each side of which has proved that it knows the secret.
struct TcpGroup {
  int rank = 0;
  std::uint64_t generation = 0;  // random; of this communicator
  Algorithm all_reduce = Algorithm::Auto;
  std::size_t segment_bytes = 0;
  int ranks_here = 1;                  // on this host
  std::vector<UniqueFd> sockets;       // by rank; none for this one
  std::vector<std::string> addresses;  // by rank: where it was reached, or came from
  std::vector<int> pids;               // by rank, on its host
};

/// Connects the ranks of a group, which meet in `store` under `name`. Listens while that lasts, on no more than
/// `options` ask for; strangers who connect meanwhile are sent away.
/// Throws Timeout naming the ranks that did not come, InvalidArgument for options that cannot be followed, Mismatch for
/// ranks that do not belong together, System, or the job's failure.
TcpGroup connect_tcp_group(Store& store, const std::string& name, int rank, int world_size, const TcpOptions& options,
                           Deadline deadline);

}  // namespace paceline
