#include "paceline/comm/comm_state.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

namespace paceline {

Comm::State::~State() {
  staging = {};  // before the engine it came from
  if (!engine || std::uncaught_exceptions() == 0) {
    let_go_of_orphans();
  } else if (const auto known = parent.lock()) {
    const std::lock_guard lock(known->family_mutex);
    for (auto& orphan : orphans) known->orphans.push_back(std::move(orphan));
    known->orphans.push_back(std::move(engine));
  } else {
    abort_family({ErrorCode::Aborted, fmt::format("rank {} left with an exception", rank), rank, rank});
  }
}

void Comm::State::abort_family(const Error& cause) noexcept {
  if (engine) engine->abort(cause);
  const std::lock_guard lock(family_mutex);
  for (const auto& orphan : orphans) orphan->abort(cause);
  for (const auto& weak : children) {
    if (const auto child = weak.lock()) child->abort_family(cause);
  }
}

void Comm::State::let_go_of_orphans() {
  const std::lock_guard lock(family_mutex);
  for (const auto& orphan : orphans) {
    orphan->abort({ErrorCode::Aborted, fmt::format("rank {} left with an exception", rank), rank, rank});
  }
  orphans.clear();
}

void Comm::State::tell(const Error& error) noexcept {
  if (error.code() == ErrorCode::InvalidArgument || failure_told) return;
  failure_told = true;
  if (store) store->fail(job_rank, to_string(error.code()), error.message());
}

std::uint64_t Comm::State::carry_out(const Operation& operation, Algorithm chosen) {
  return guarded([&] {
    if (!orphans.empty()) let_go_of_orphans();
    if (timeline->in_step()) return carry_out_in_step(operation, chosen);
    return engine->run(operation, chosen);
  });
}

std::uint64_t Comm::State::carry_out_in_step(const Operation& operation, Algorithm chosen) {
  const ScopedPhase phase(*timeline, Phase::Communication);
  Operation timed = operation;
  timed.timed = true;
  const std::uint64_t number = engine->run(timed, chosen);
  const OperationTiming timing = engine->timing(number);
  timeline->add_operation({timing.launched, timing.last_arrival, timing.completed,
                           operation.count * size_of(operation.dtype), to_string(operation.kind), timing.working});
  return number;
}

}  // namespace paceline
