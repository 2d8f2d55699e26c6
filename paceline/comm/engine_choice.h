#pragma once

#include <memory>
#include <string>

#include "paceline/comm/comm.h"

namespace paceline {

/// The engine that fits where the ranks of a group are: shared memory where they share a host, TCP where each has its
/// own, and both where hosts have several. Collective; the group meets in `store` under `name`. Nothing listens for TCP
/// where all share a host. Throws as find_hosts(), connect_shm_group() and connect_tcp_group() do.
std::unique_ptr<Engine> make_engine_for_topology(const std::shared_ptr<Store>& store, const std::string& name, int rank,
                                                 int world_size, const TcpOptions& tcp, const CommOptions& options);

}  // namespace paceline
