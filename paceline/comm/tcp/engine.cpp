#include "paceline/comm/tcp/engine.h"

#include <utility>

#include "paceline/comm/tcp/transport.h"

namespace paceline {

std::unique_ptr<MessageEngine> make_tcp_engine(const std::shared_ptr<Store>& store, const std::string& name, int rank,
                                               int world_size, const TcpOptions& options, Nanoseconds timeout,
                                               std::shared_ptr<const JobStatus> job_status,
                                               std::unique_ptr<HostGroup> hosts) {
  TcpGroup group = connect_tcp_group(*store, name, rank, world_size, options, Deadline(timeout));
  const Algorithm all_reduce = group.all_reduce;
  return std::make_unique<MessageEngine>(
      std::make_unique<TcpTransport>(std::move(group), store, name, std::move(job_status)), timeout, all_reduce,
      std::move(hosts));
}

}  // namespace paceline
