#pragma once

#include <functional>
#include <memory>
#include <string>

#include "paceline/comm/comm.h"
#include "paceline/comm/store.h"

namespace paceline {

/// What the copies of a Comm share.
struct Comm::State {
  /// Makes the engine of a communicator of this name; collective among its ranks.
  using MakeEngine = std::function<std::unique_ptr<Engine>(const std::string& name, int rank, int world_size)>;

  std::string name = "world";
  int rank = 0;
  int world_size = 1;
  int job_rank = 0;  // in the communicator of all workers
  std::shared_ptr<Timeline> timeline = std::make_shared<Timeline>();
  std::shared_ptr<Store> store;  // null where there is no launcher to tell of a failure
  MakeEngine make_engine;
  std::unique_ptr<Engine> engine;  // null in a world of one
  std::uint64_t children = 0;
  std::optional<std::uint64_t> seed;
  bool failure_told = false;
  Buffer staging;  // for operands that the engine does not reach

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  /// Tells the others if this rank leaves because of an exception.
  ~State();

  /// Calls `action`; a failure is told to the launcher, once, before it goes on.
  template <class Action>
  auto guarded(Action&& action) {
    try {
      return action();
    } catch (const Error& error) {
      tell(error);
      throw;
    }
  }
  void tell(const Error& error) noexcept;

  /// Starts the operation, waits for it, and enters it in the timeline.
  void carry_out(const Operation& operation);
};

}  // namespace paceline
