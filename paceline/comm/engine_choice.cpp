#include "paceline/comm/engine_choice.h"

#include <fmt/format.h>

#include <utility>

#include "paceline/comm/host_map.h"
#include "paceline/comm/shm/engine.h"
#include "paceline/comm/tcp/engine.h"

namespace paceline {

std::unique_ptr<Engine> make_engine_for_topology(const std::shared_ptr<Store>& store, const std::string& name, int rank,
                                                 int world_size, const TcpOptions& tcp, const CommOptions& options) {
  const Deadline deadline(options.timeout);
  const auto inside = [&](const std::string& group, int place, int size) {
    return std::make_unique<ShmEngine>(connect_shm_group(*store, group, place, size, deadline), group, options.timeout,
                                       options.job_status);
  };
  HostMap map = find_hosts(*store, name, rank, world_size, deadline);
  if (map.one_host()) return inside(name, rank, world_size);
  std::unique_ptr<HostGroup> hosts;
  if (map.shares() && map.in_order()) {
    const int host = map.host_of(rank), place = map.place_of(rank);
    const auto size = static_cast<int>(map.hosts[static_cast<std::size_t>(host)].size());
    auto memory = inside(fmt::format("{}/host {}", name, host), place, size);
    hosts = std::make_unique<HostGroup>(HostGroup{std::move(map), std::move(memory)});
  }
  return make_tcp_engine(store, name, rank, world_size, tcp, options.timeout, options.job_status, std::move(hosts));
}

}  // namespace paceline
