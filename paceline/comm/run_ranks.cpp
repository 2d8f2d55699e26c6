#include "paceline/comm/run_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "paceline/comm/comm_state.h"
#include "paceline/comm/message/engine.h"
#include "paceline/comm/message/thread_transport.h"
#include "paceline/comm/shm/engine.h"
#include "paceline/comm/tcp/engine.h"

namespace paceline {
namespace {

/// What the threads of a world share, by the name of the communicator it is for. The first to ask makes it.
class ThreadWorld {
 public:
  explicit ThreadWorld(ThreadWorldOptions options) : options_(std::move(options)) {}

  /// A rank could not join; the others wait for it.
  void fail(int rank, const char* reason) {
    store_->fail(rank, Error(ErrorCode::Aborted, fmt::format("rank {} gave up: {}", rank, reason), rank, rank));
  }

  std::unique_ptr<Engine> make_engine(const std::string& name, int rank, int world_size) {
    if (options_.engine == ThreadEngine::Messages) {
      auto hub =
          shared(hubs_, name, world_size, [&] { return std::make_shared<MessageHub>(world_size, options_.faults); });
      return std::make_unique<MessageEngine>(std::make_unique<ThreadTransport>(std::move(hub), rank),
                                             options_.comm.timeout);
    }
    if (options_.engine == ThreadEngine::Tcp) {
      return make_tcp_engine(store_, name, rank, world_size, options_.tcp, options_.comm.timeout);
    }
    if (options_.engine == ThreadEngine::Hosts) {
      HostMap map = host_map(world_size);
      if (!map.one_host()) return make_engine_for_topology(std::move(map), name, rank, world_size);
    }
    return share_memory(name, rank, world_size);
  }

 private:
  std::unique_ptr<Engine> share_memory(const std::string& name, int rank, int world_size) {
    ShmGroup group;
    group.rank = rank;
    group.segments = shared(segments_, name, world_size, [&] { return make_thread_segments(world_size); });
    group.links.resize(group.segments.size());
    return std::make_unique<ShmEngine>(std::move(group), name, options_.comm.timeout);
  }

  HostMap host_map(int world_size) const {
    HostMap map;
    const std::vector<int>& sizes = options_.ranks_per_host;
    for (int rank = 0; rank < world_size;) {
      auto& ranks = map.hosts.emplace_back();
      for (int place = 0; place < sizes[(map.hosts.size() - 1) % sizes.size()] && rank < world_size; ++place) {
        ranks.push_back(rank++);
      }
    }
    return map;
  }

  std::unique_ptr<Engine> make_engine_for_topology(HostMap map, const std::string& name, int rank, int world_size) {
    std::unique_ptr<HostGroup> hosts;
    if (map.shares()) {
      const int host = map.host_of(rank);
      auto memory = share_memory(fmt::format("{}/host {}", name, host), map.place_of(rank),
                                 static_cast<int>(map.hosts[static_cast<std::size_t>(host)].size()));
      hosts = std::make_unique<HostGroup>(HostGroup{std::move(map), std::move(memory)});
    }
    return make_tcp_engine(store_, name, rank, world_size, options_.tcp, options_.comm.timeout, nullptr,
                           std::move(hosts));
  }

  /// Kept until all ranks have asked for it; from then on they keep it themselves.
  template <class T>
  struct Meeting {
    T shared;
    int missing;
  };

  template <class T, class Make>
  T shared(std::map<std::string, Meeting<T>>& all, const std::string& name, int world_size, Make&& make) {
    std::lock_guard lock(mutex_);
    auto found = all.find(name);
    if (found == all.end()) found = all.emplace(name, Meeting<T>{make(), world_size}).first;
    T shared = found->second.shared;
    if (--found->second.missing == 0) all.erase(found);
    return shared;
  }

  const ThreadWorldOptions options_;
  const std::shared_ptr<Store> store_ = make_memory_store();
  std::mutex mutex_;
  std::map<std::string, Meeting<std::shared_ptr<MessageHub>>> hubs_;
  std::map<std::string, Meeting<std::vector<std::shared_ptr<Segment>>>> segments_;
};

Comm make_comm(const std::shared_ptr<ThreadWorld>& world, int rank, int world_size) {
  auto state = std::make_shared<Comm::State>();
  state->rank = state->job_rank = rank;
  state->world_size = world_size;
  state->make_engine = [world](const std::string& name, int group_rank, int group_size) {
    return world->make_engine(name, group_rank, group_size);
  };
  if (world_size > 1) state->engine = state->make_engine(state->name, rank, world_size);
  return Comm(std::move(state));
}

}  // namespace

void run_ranks(int world_size, const std::function<void(Comm)>& body, const ThreadWorldOptions& options) {
  if (world_size < 1) throw Error(ErrorCode::InvalidArgument, "run_ranks: the world size must be at least 1");
  const auto none = [](int ranks) { return ranks < 1; };
  if (options.ranks_per_host.empty() ||
      std::any_of(options.ranks_per_host.begin(), options.ranks_per_host.end(), none)) {
    throw Error(ErrorCode::InvalidArgument, "run_ranks: each host must have a rank");
  }
  const auto world = std::make_shared<ThreadWorld>(options);
  std::mutex mutex;
  std::exception_ptr first;
  const auto run_rank = [&](int rank) {
    std::optional<Comm> comm;
    const auto failed = [&](const char* reason) {
      {
        std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      if (comm) comm->abort(reason);
      else world->fail(rank, reason);
    };
    try {
      comm = make_comm(world, rank, world_size);
      body(*comm);
    } catch (const std::exception& error) {
      failed(error.what());
    } catch (...) {
      failed("an exception that is no std::exception");
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace paceline
