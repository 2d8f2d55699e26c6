#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/base/origin.h"
#include "paceline/comm/comm.h"
#include "paceline/comm/status/status_writer.h"
#include "paceline/store/store.h"

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
  std::shared_ptr<Store> store;              // null where there is no launcher to tell of a failure
  std::shared_ptr<StatusWriter> job_status;  // null where no launcher watches
  StatusName status_name{};
  std::uint64_t entered = 0;  // operations, as the engine numbers them
  MakeEngine make_engine;
  std::unique_ptr<Engine> engine;  // null in a world of one
  std::uint64_t child_count = 0;
  std::optional<std::uint64_t> seed;
  bool failure_told = false;

  // abort() reaches the communicators made from this one, also from another thread.
  std::mutex family_mutex;
  std::weak_ptr<State> parent;
  std::vector<std::weak_ptr<State>> children;
  std::optional<Error> failure;  // the first that this rank threw, here or in a child
  /// Engines of children that an exception has destroyed: their peers wait for the reason, which comes with abort().
  std::vector<std::unique_ptr<Engine>> orphans;
  Buffer staging;                  // for operands that the engine does not reach
  std::uint64_t bytes_copied = 0;  // to and from staging

  const Origin origin = {};
  std::atomic<bool> in_use = false;

  /// A call's stay in the communicator. Throws InvalidArgument where another thread is in one, and in a forked child.
  /// Costs an atomic exchange; also orders what threads do that take turns.
  class Use {
   public:
    explicit Use(State& state) : state_(state) {
      if (!state.origin.here() || state.in_use.exchange(true, std::memory_order_acquire)) state.refuse_use();
    }
    ~Use() { state_.in_use.store(false, std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    State& state_;
  };

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  /// Tells the others if this rank leaves because of an exception; a child leaves that to its parent, which may know
  /// why. Does nothing in a forked child process.
  ~State();

  [[noreturn]] void refuse_use() const;
  /// Throws InvalidArgument in a forked child.
  void require_here() const {
    if (!origin.here()) refuse_use();
  }

  /// Makes the engine, under the name that the state has.
  void join();

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
  /// What the others hear when this rank gives up for this reason: its failure, where that is the reason or there is
  /// none, else `own`.
  Error last_words(const std::string& own, std::string_view reason);
  void add_links(std::vector<LinkInfo>& all);
  void abort_family(const Error& cause) noexcept;
  /// The exception that made them was caught: this rank goes on without them.
  void let_go_of_orphans();

  /// Starts the operation, waits for it, and enters it in the timeline. Returns its number.
  std::uint64_t run(const Operation& operation, Algorithm chosen);
  /// Where an operation that was started stands on this worker's page of the job status.
  struct Started {
    std::uint64_t number, status_sequence;
  };
  Started start(const Operation& operation, Algorithm chosen);
  bool test(const Started& started);
  /// Puts a timed operation that is complete into the timeline, within a step.
  void record(std::uint64_t number, std::uint64_t bytes, const char* label);
  void wait(const Started& started);

 private:
  template <class Action>
  auto with_status(std::uint64_t sequence, Action&& action);
  void remember(const Error& error);
  std::uint64_t run_in_step(const Operation& operation, Algorithm chosen);
};

}  // namespace paceline
