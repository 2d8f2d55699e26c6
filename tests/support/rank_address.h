#pragma once

#include <chrono>
#include <cstdint>
#include <sstream>
#include <string>

#include "paceline/net/tcp_address.h"
#include "paceline/store/store.h"

namespace paceline::test {

/// Where rank 0 of "world" listens.
inline SocketAddress address_of_rank_0(Store& store) {
  std::istringstream words(store.get("tcp/world/address/0", Deadline(std::chrono::seconds(60))));
  std::string world_size, host, pid, address;
  std::uint16_t port = 0;
  words >> world_size >> host >> pid >> address >> port;
  return {address, port};
}

}  // namespace paceline::test
