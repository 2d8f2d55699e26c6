#include "paceline/comm/comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <utility>

#include "paceline/comm/comm_state.h"
#include "paceline/comm/message_collectives.h"
#include "paceline/comm/staging.h"

namespace paceline {
namespace {

std::size_t element_count(Dtype dtype, std::size_t bytes) {
  if (bytes % size_of(dtype) != 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} bytes are no whole number of {} elements", bytes, to_string(dtype)));
  }
  return bytes / size_of(dtype);
}

void require_parts(std::size_t whole, std::size_t part, int world_size, const char* call) {
  if (whole == part * static_cast<std::size_t>(world_size)) return;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("{}: the larger buffer must have {} parts (one a rank) of the smaller one's {} bytes, but has "
                  "{} bytes",
                  call, world_size, part, whole));
}

}  // namespace

int Comm::rank() const { return state_->rank; }
int Comm::world_size() const { return state_->world_size; }
const char* Comm::engine_name() const { return state_->engine ? state_->engine->name() : "solo"; }
Timeline& Comm::timeline() const { return *state_->timeline; }
std::optional<std::uint64_t> Comm::seed() const { return state_->seed; }
void Comm::set_seed(std::uint64_t seed) const { state_->seed = seed; }

Buffer Comm::allocate(std::size_t bytes) const {
  if (!state_->engine) return allocate_on_heap(bytes);
  return state_->engine->allocate(bytes);
}

void Comm::all_reduce(Dtype dtype, std::span<std::byte> data, ReduceOp op) const {
  Operation operation{.kind = Collective::AllReduce, .dtype = dtype, .reduce = op};
  operation.count = element_count(dtype, data.size());
  operation.in = operation.out = data.data();
  if (state_->engine) staged::all_reduce(*state_, operation);
}

void Comm::reduce_scatter(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out, ReduceOp op) const {
  require_parts(in.size(), out.size(), world_size(), "reduce_scatter");
  Operation operation{.kind = Collective::ReduceScatter, .dtype = dtype, .reduce = op};
  operation.count = element_count(dtype, out.size());
  operation.in = in.data();
  operation.out = out.data();
  if (state_->engine) staged::reduce_scatter(*state_, operation);
  else if (!in.empty()) std::memmove(out.data(), in.data(), in.size());
}

void Comm::all_gather(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out) const {
  require_parts(out.size(), in.size(), world_size(), "all_gather");
  Operation operation{.kind = Collective::AllGather, .dtype = dtype};
  operation.count = element_count(dtype, in.size());
  operation.in = in.data();
  operation.out = out.data();
  if (state_->engine) staged::all_gather(*state_, operation);
  else if (!in.empty()) std::memmove(out.data(), in.data(), in.size());
}

void Comm::broadcast(Dtype dtype, std::span<std::byte> data, int root) const {
  if (root < 0 || root >= world_size()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("broadcast: there is no rank {} in a world of {}", root, world_size()));
  }
  Operation operation{.kind = Collective::Broadcast, .dtype = dtype, .root = root};
  operation.count = element_count(dtype, data.size());
  operation.in = operation.out = data.data();
  if (state_->engine) staged::broadcast(*state_, operation);
}

void Comm::barrier() const {
  if (state_->engine) state_->carry_out({.kind = Collective::Barrier});
}

double Comm::mean(double value, double weight) const {
  std::array sums{value * weight, weight};
  if (weight == 0) sums[0] = 0;  // the mean of no samples is often NaN
  all_reduce<double>(sums);
  return sums[0] / sums[1];
}

double Comm::sum(double value) const {
  all_reduce<double>(std::span(&value, 1));
  return value;
}

std::vector<std::string> Comm::gather(const std::string& text) const {
  const auto world = static_cast<std::size_t>(world_size());
  const auto length = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> lengths(world);
  all_gather<std::int64_t>(std::span(&length, 1), lengths);
  const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::vector<std::uint8_t> own(longest), all(longest * world);
  std::copy(text.begin(), text.end(), own.begin());
  all_gather<std::uint8_t>(own, all);
  std::vector<std::string> texts;
  for (std::size_t peer = 0; peer < world; ++peer) {
    const auto* begin = reinterpret_cast<const char*>(all.data()) + longest * peer;
    texts.emplace_back(begin, begin + lengths[peer]);
  }
  return texts;
}

Comm::Work Comm::start(const Operation& operation) const {
  if (!state_->engine) return {};
  if (!state_->orphans.empty()) state_->let_go_of_orphans();
  return {state_.get(), state_->guarded([&] { return state_->engine->start(operation); })};
}

bool Comm::Work::test() {
  return state_ == nullptr || state_->guarded([&] { return state_->engine->test(number_); });
}

void Comm::Work::wait() {
  if (state_ != nullptr) state_->guarded([&] { state_->engine->wait(number_); });
}

OperationTiming Comm::Work::timing() const {
  return state_ == nullptr ? OperationTiming{} : state_->engine->timing(number_);
}

Comm Comm::duplicate() const { return split(0); }

Comm Comm::split(int color, int key) const {
  struct Choice {
    std::int32_t color, key, rank;
  };
  const std::array<std::int32_t, 3> own{color, key, rank()};
  std::vector<std::int32_t> all(3 * static_cast<std::size_t>(world_size()));
  all_gather<std::int32_t>(own, all);
  std::vector<std::pair<std::int32_t, std::int32_t>> members;  // key, rank
  for (std::size_t i = 0; i < all.size(); i += 3) {
    if (all[i] == color) members.emplace_back(all[i + 1], all[i + 2]);
  }
  std::sort(members.begin(), members.end());

  auto child = std::make_shared<State>();
  child->name = fmt::format("{}/{}.{}", state_->name, state_->child_count++, color);
  child->rank = static_cast<int>(std::find(members.begin(), members.end(), std::pair{key, rank()}) - members.begin());
  child->world_size = static_cast<int>(members.size());
  child->job_rank = state_->job_rank;
  child->timeline = state_->timeline;
  child->store = state_->store;
  child->seed = state_->seed;
  child->parent = state_;
  child->make_engine = state_->make_engine;
  if (child->world_size > 1) {
    child->engine = state_->guarded([&] { return child->make_engine(child->name, child->rank, child->world_size); });
    const std::lock_guard lock(state_->family_mutex);
    std::erase_if(state_->children, [](const auto& other) { return other.expired(); });
    state_->children.push_back(child);
  }
  return Comm(std::move(child));
}

void Comm::fail(const Error& cause) const {
  state_->guarded([&] {
    if (!state_->engine) throw Error(cause);
    state_->engine->abort(cause);
    state_->engine->check();
  });
  throw Error(cause);
}

void Comm::abort(const std::string& reason) const noexcept {
  if (!state_->engine) return;
  const Error cause(ErrorCode::Aborted, fmt::format("rank {} gave up: {}", state_->rank, reason), state_->rank,
                    state_->rank);
  state_->abort_family(cause);
  if (state_->store) state_->store->fail(state_->job_rank, to_string(cause.code()), cause.message());
}

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

void Comm::State::carry_out(const Operation& operation) {
  guarded([&] {
    if (!orphans.empty()) let_go_of_orphans();
    const ScopedPhase phase(*timeline, Phase::Communication);
    const std::uint64_t number = engine->run(operation);
    if (!timeline->in_step()) return;
    const OperationTiming timing = engine->timing(number);
    timeline->add_operation({timing.launched, timing.last_arrival, timing.completed,
                             operation.count * size_of(operation.dtype), to_string(operation.kind)});
  });
}

}  // namespace paceline
