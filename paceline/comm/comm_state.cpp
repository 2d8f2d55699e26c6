#include "paceline/comm/comm_state.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

namespace paceline {

Comm::State::~State() {
  if (!origin.here()) {
    for (auto& orphan : orphans) never_destroy(std::move(orphan));
    never_destroy(std::move(engine));
    never_destroy(std::move(store));
    return;
  }
  staging = {};  // before the engine it came from
  if (job_status) job_status->leave(status_name);
  if (!engine || std::uncaught_exceptions() == 0) {
    let_go_of_orphans();
  } else if (const auto known = parent.lock()) {
    const std::lock_guard lock(known->family_mutex);
    for (auto& orphan : orphans) known->orphans.push_back(std::move(orphan));
    known->orphans.push_back(std::move(engine));
  } else {
    abort_family(last_words(fmt::format("rank {} left with an exception", rank), ""));
  }
}

Error Comm::State::last_words(const std::string& own, std::string_view reason) {
  const std::lock_guard lock(family_mutex);
  if (failure && (reason.empty() || reason.find(failure->message()) != std::string_view::npos)) return *failure;
  return Error(ErrorCode::Aborted, own, rank, rank, failure ? failure->cause() : Cause::First);
}

void Comm::State::refuse_use() const {
  if (!origin.here()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("this process was forked from rank {}, which made communicator '{}': only that one can "
                            "call it",
                            rank, name),
                rank);
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("another thread of rank {} is in a call on communicator '{}': let threads take turns, or "
                          "give each a communicator of its own (duplicate())",
                          rank, name),
              rank);
}

void Comm::State::abort_family(const Error& cause) noexcept {
  if (engine) engine->abort(cause);
  const std::lock_guard lock(family_mutex);
  for (const auto& orphan : orphans) orphan->abort(cause);
  for (const auto& weak : children) {
    if (const auto child = weak.lock()) child->abort_family(cause);
  }
}

void Comm::State::add_links(std::vector<LinkInfo>& all) {
  if (engine) {
    for (LinkInfo& link : engine->links()) all.push_back(std::move(link));
  }
  const std::lock_guard lock(family_mutex);
  for (const auto& weak : children) {
    if (const auto child = weak.lock()) child->add_links(all);
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
  if (error.code() != ErrorCode::InvalidArgument) remember(error);
  // Of a lost host the launchers told this rank, and the store may be there.
  if (error.code() == ErrorCode::InvalidArgument || error.fault() == Fault::HostLost || failure_told) return;
  failure_told = true;
  if (store) store->fail(job_rank, error);
}

void Comm::State::remember(const Error& error) {
  {
    const std::lock_guard lock(family_mutex);
    if (!failure) failure = error;
  }
  const auto known = parent.lock();
  if (!known) return;
  // Which counts ranks in another way.
  const int rank_there = error.cause() == Cause::First ? known->rank : Error::kNoRank;
  known->remember(Error(error.fault(), error.message(), rank_there, rank_there, error.cause()));
}

/// `sequence` is the number in the job status of the operation that the action belongs to; an exception ends it there
/// too.
template <class Action>
auto Comm::State::with_status(std::uint64_t sequence, Action&& action) {
  try {
    return guarded(action);
  } catch (...) {
    if (job_status) job_status->fail(sequence);
    throw;
  }
}

void Comm::State::join() {
  if (job_status) status_name = job_status->join(name, world_size);
  const std::uint64_t sequence = job_status ? job_status->enter_join(status_name) : 0;
  engine = with_status(sequence, [&] { return make_engine(name, rank, world_size); });
  if (job_status) job_status->complete(sequence, StatusWriter::kFew);
}

std::uint64_t Comm::State::run(const Operation& operation, Algorithm chosen) {
  const std::uint64_t sequence = job_status ? job_status->enter(operation, ++entered, status_name) : 0;
  const std::uint64_t number = with_status(sequence, [&] {
    if (!orphans.empty()) let_go_of_orphans();
    if (timeline->in_step()) return run_in_step(operation, chosen);
    return engine->run(operation, chosen);
  });
  if (job_status) job_status->complete(sequence, operation.count);
  return number;
}

Comm::State::Started Comm::State::start(const Operation& operation, Algorithm chosen) {
  Started started{};
  if (job_status) started.status_sequence = job_status->enter(operation, ++entered, status_name);
  started.number = with_status(started.status_sequence, [&] { return engine->start(operation, chosen); });
  if (job_status) job_status->go_on(started.status_sequence);
  return started;
}

bool Comm::State::test(const Started& started) {
  const bool done = with_status(started.status_sequence, [&] { return engine->test(started.number); });
  if (done && job_status) job_status->complete(started.status_sequence, StatusWriter::kFew);
  return done;
}

void Comm::State::wait(const Started& started) {
  std::uint64_t sequence = started.status_sequence;
  if (job_status) sequence = job_status->wait_for(started.status_sequence, started.number, status_name);
  with_status(sequence, [&] { engine->wait(started.number); });
  if (job_status) job_status->complete(sequence, StatusWriter::kFew);
}

std::uint64_t Comm::State::run_in_step(const Operation& operation, Algorithm chosen) {
  const ScopedPhase phase(*timeline, Phase::Communication);
  Operation timed = operation;
  timed.timed = true;
  const std::uint64_t number = engine->run(timed, chosen);
  record(number, operation.count * size_of(operation.dtype), to_string(operation.kind));
  return number;
}

void Comm::State::record(std::uint64_t number, std::uint64_t bytes, const char* label) {
  if (!timeline->in_step()) return;
  const OperationTiming timing = engine->timing(number);
  timeline->add_operation({timing.launched, timing.last_arrival, timing.completed, bytes, label, timing.working});
}

}  // namespace paceline
