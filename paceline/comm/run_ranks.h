#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/comm/message/faults.h"

namespace paceline {

/// How ranks that are threads of one process reach each other.
enum class ThreadEngine {
  SharedMemory,  ///< The engine of `paceline run` on segments of this process. The fast one.
  Messages,      ///< Messages through queues; can be made to fail on purpose.
  Tcp,           ///< The engine between hosts, over loopback.
  Hosts,         ///< As if only ThreadWorldOptions::ranks_per_host ranks shared a host.
};

struct ThreadWorldOptions {
  ThreadEngine engine = ThreadEngine::SharedMemory;
  CommOptions comm = {};
  TcpOptions tcp = {};  ///< For ThreadEngine::Tcp and Hosts.
  /// For ThreadEngine::Hosts: how many ranks the hosts have, over and over.
  std::vector<int> ranks_per_host = {2};
  /// For ThreadEngine::Messages: what happens to messages. Null means nothing does.
  std::shared_ptr<MessageFaults> faults = nullptr;
};

/// Runs `body` on `world_size` threads of this process, each with the Comm of its rank, and waits for all of them.
///
/// If one throws, its communicator is aborted, so that the others leave what they wait in; the exception of the first
/// to fail is thrown again here, once all have ended.
/// Libtorch has one CPU random generator per process: ranks that are threads draw from it in turn.
void run_ranks(int world_size, const std::function<void(Comm)>& body, const ThreadWorldOptions& options = {});

}  // namespace paceline
