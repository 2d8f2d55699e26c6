#include "paceline/comm/threads.h"

#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "paceline/comm/comm_state.h"
#include "paceline/comm/message_engine.h"
#include "paceline/comm/shm_engine.h"
#include "paceline/comm/thread_transport.h"

namespace paceline {
namespace {

/// What the threads of a world share, by the name of the communicator it is for. The first to ask makes it.
class ThreadWorld {
 public:
  explicit ThreadWorld(ThreadWorldOptions options) : options_(std::move(options)) {}

  std::unique_ptr<Engine> make_engine(const std::string& name, int rank, int world_size) {
    if (options_.engine == ThreadEngine::Messages) {
      auto hub = shared(hubs_, name, [&] { return std::make_shared<MessageHub>(world_size, options_.faults); });
      return std::make_unique<MessageEngine>(std::make_unique<ThreadTransport>(std::move(hub), rank),
                                             options_.comm.timeout);
    }
    ShmGroup group;
    group.rank = rank;
    group.segments = shared(segments_, name, [&] { return make_thread_segments(world_size); });
    group.links.resize(group.segments.size());
    return std::make_unique<ShmEngine>(std::move(group), name, options_.comm.timeout);
  }

 private:
  template <class T, class Make>
  T shared(std::map<std::string, T>& all, const std::string& name, Make&& make) {
    std::lock_guard lock(mutex_);
    const auto found = all.find(name);
    return found != all.end() ? found->second : all.emplace(name, make()).first->second;
  }

  const ThreadWorldOptions options_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<MessageHub>> hubs_;
  std::map<std::string, std::vector<std::shared_ptr<Segment>>> segments_;
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
  const auto world = std::make_shared<ThreadWorld>(options);
  std::vector<Comm> comms;
  comms.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) comms.push_back(make_comm(world, rank, world_size));

  std::mutex mutex;
  std::exception_ptr first;
  const auto run_rank = [&](int rank) {
    Comm comm = std::move(comms[rank]);
    try {
      body(comm);
    } catch (const std::exception& error) {
      {
        std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      comm.abort(error.what());
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace paceline
