#pragma once

#include <memory>
#include <string>

#include "paceline/comm/message/engine.h"
#include "paceline/comm/tcp/options.h"

namespace paceline {

class JobStatus;
class Store;

/// Connects the ranks of a communicator over TCP (connect_tcp_group()) and carries out its operations. `hosts` may be
/// null.
std::unique_ptr<MessageEngine> make_tcp_engine(const std::shared_ptr<Store>& store, const std::string& name, int rank,
                                               int world_size, const TcpOptions& options, Nanoseconds timeout,
                                               std::shared_ptr<const JobStatus> job_status = nullptr,
                                               std::unique_ptr<HostGroup> hosts = nullptr);

}  // namespace paceline
