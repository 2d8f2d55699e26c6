#include "paceline/comm/comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <utility>

#include "paceline/base/enumerator.h"
#include "paceline/base/stack_frames.h"
#include "paceline/comm/comm_state.h"
#include "paceline/comm/message/collectives.h"
#include "paceline/comm/staging.h"

namespace paceline {
namespace {

std::size_t element_count(Dtype dtype, std::size_t bytes) {
  require_enumerator("dtype", dtype, Dtype::UInt8);
  if (bytes % size_of(dtype) != 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} bytes are no whole number of {} elements", bytes, to_string(dtype)));
  }
  return bytes / size_of(dtype);
}

void require_same(std::size_t in, std::size_t out, const char* call) {
  if (in == out) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{}: in has {} bytes and out {}; they must be equal", call, in, out));
}

/// A world of one: what is given is what is got.
void run_alone(const Operation& operation) {
  const std::size_t elements = std::min(in_extent(operation, 0, 1), out_extent(operation, 0, 1));
  if (elements > 0 && operation.in != operation.out) {
    std::memmove(operation.out, operation.in, elements * size_of(operation.dtype));
  }
}

}  // namespace

// Both operands must be as long as the operation says; only a root's are looked at where there is one.
void Comm::require_extents(const Operation& operation, std::span<const std::byte> in, std::span<std::byte> out) const {
  check_operation(operation, rank(), world_size());
  const auto require = [&](const char* name, std::size_t bytes, std::size_t elements) {
    const std::size_t wanted = elements * size_of(operation.dtype);
    if (elements == 0 || bytes == wanted) return;
    throw Error(ErrorCode::InvalidArgument, fmt::format("{}: {} has {} bytes, but for {} ranks it must have {}",
                                                        to_string(operation.kind), name, bytes, world_size(), wanted));
  };
  require("in", in.size(), in_extent(operation, rank(), world_size()));
  require("out", out.size(), out_extent(operation, rank(), world_size()));
}

int Comm::rank() const { return state_->rank; }
int Comm::world_size() const { return state_->world_size; }
std::vector<std::byte*> Comm::map_peers(std::byte* memory) const {
  if (!state_->engine) return {memory};
  const auto own = static_cast<std::int64_t>(state_->engine->offset_of(memory));
  std::vector<std::int64_t> all(static_cast<std::size_t>(world_size()));
  all_gather(std::span(&own, 1), std::span(all));
  std::vector<std::byte*> addresses;
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto offset = static_cast<std::uint64_t>(all[static_cast<std::size_t>(rank)]);
    addresses.push_back(state_->engine->at_peer(rank, offset, 0));
  }
  return addresses;
}
Algorithm Comm::algorithm(const Operation& operation) const {
  return state_->engine ? state_->engine->algorithm(operation) : Algorithm::Auto;
}
const char* Comm::engine_name() const { return state_->engine ? state_->engine->name() : "solo"; }
Timeline& Comm::timeline() const { return *state_->timeline; }
std::optional<std::uint64_t> Comm::seed() const { return state_->seed; }
void Comm::set_seed(std::uint64_t seed) const { state_->seed = seed; }

Buffer Comm::allocate(std::size_t bytes) const {
  if (!state_->engine) return allocate_on_heap(bytes);
  state_->require_here();
  return state_->engine->allocate(bytes);
}

void Comm::all_reduce(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out, ReduceOp op) const {
  require_same(in.size(), out.size(), "all_reduce");
  run({.kind = Collective::AllReduce,
       .dtype = dtype,
       .reduce = op,
       .count = element_count(dtype, in.size()),
       .in = in.data(),
       .out = out.data()});
}

void Comm::reduce(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out, int root, ReduceOp op) const {
  if (rank() == root) require_same(in.size(), out.size(), "reduce");
  run({.kind = Collective::Reduce,
       .dtype = dtype,
       .reduce = op,
       .root = root,
       .count = element_count(dtype, in.size()),
       .in = in.data(),
       .out = out.data()});
}

void Comm::reduce_scatter(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out, ReduceOp op,
                          Counts counts) const {
  const Operation operation{.kind = Collective::ReduceScatter,
                            .dtype = dtype,
                            .reduce = op,
                            .count = element_count(dtype, out.size()),
                            .in = in.data(),
                            .out = out.data(),
                            .counts = counts};
  require_extents(operation, in, out);
  run(operation);
}

void Comm::all_gather(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out, Counts counts) const {
  const Operation operation{.kind = Collective::AllGather,
                            .dtype = dtype,
                            .count = element_count(dtype, in.size()),
                            .in = in.data(),
                            .out = out.data(),
                            .counts = counts};
  require_extents(operation, in, out);
  run(operation);
}

void Comm::broadcast(Dtype dtype, std::span<std::byte> data, int root) const {
  run({.kind = Collective::Broadcast,
       .dtype = dtype,
       .root = root,
       .count = element_count(dtype, data.size()),
       .in = data.data(),
       .out = data.data()});
}

void Comm::gather(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out, int root, Counts counts) const {
  const Operation operation{.kind = Collective::Gather,
                            .dtype = dtype,
                            .root = root,
                            .count = element_count(dtype, in.size()),
                            .in = in.data(),
                            .out = out.data(),
                            .counts = counts};
  require_extents(operation, in, out);
  run(operation);
}

void Comm::scatter(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out, int root,
                   Counts counts) const {
  const Operation operation{.kind = Collective::Scatter,
                            .dtype = dtype,
                            .root = root,
                            .count = element_count(dtype, out.size()),
                            .in = in.data(),
                            .out = out.data(),
                            .counts = counts};
  require_extents(operation, in, out);
  run(operation);
}

void Comm::all_to_all(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out, Counts send_counts,
                      Counts receive_counts) const {
  const auto world = static_cast<std::size_t>(world_size());
  const Operation operation{.kind = Collective::AllToAll,
                            .dtype = dtype,
                            .count = send_counts.empty() ? element_count(dtype, in.size() / world) : 0,
                            .in = in.data(),
                            .out = out.data(),
                            .counts = send_counts,
                            .receive_counts = receive_counts};
  require_extents(operation, in, out);
  run(operation);
}

void Comm::barrier() const { run({.kind = Collective::Barrier}); }

void Comm::run(const Operation& operation) const {
  check_operation(operation, rank(), world_size());
  if (!state_->engine) return run_alone(operation);
  const State::Use use(*state_);
  staged::run(*state_, operation);
}

std::uint64_t Comm::bytes_copied() const { return state_->bytes_copied; }

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
  const auto too_long = [&](std::int64_t bytes) { return bytes < 0 || bytes > PTRDIFF_MAX / world_size(); };
  if (const auto at = std::find_if(lengths.begin(), lengths.end(), too_long); at != lengths.end()) {
    const auto peer = static_cast<int>(at - lengths.begin());
    fail({ErrorCode::Corrupt, fmt::format("rank {} says that it gives a text of {} bytes", peer, *at), rank(), peer});
  }
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
  check_operation(operation, rank(), world_size());
  if (!state_->engine) {
    run_alone(operation);
    return {};
  }
  const State::Use use(*state_);
  if (!state_->orphans.empty()) state_->let_go_of_orphans();
  Operation reachable = operation;
  reachable.started = true;
  const Algorithm chosen = state_->engine->algorithm(reachable);
  std::shared_ptr<StagedOperation> staged;
  if (!staged::reaches_operands(*state_, reachable, chosen)) {
    staged = std::make_shared<StagedOperation>(*state_, reachable);
    reachable = staged->operation();
  }
  const State::Started started = state_->start(reachable, chosen);
  Work work(state_.get(), started.number, started.status_sequence);
  work.staged_ = std::move(staged);
  if (operation.timed) {
    work.timed_bytes_ = operation.count * size_of(operation.dtype);
    work.label_ = operation.label[0] != '\0' ? operation.label : to_string(operation.kind);
  }
  return work;
}

bool Comm::Work::test() {
  if (state_ == nullptr) return true;
  const State::Use use(*state_);
  if (!state_->test({number_, status_sequence_})) return false;
  if (staged_) staged_->finish();
  return true;
}

void Comm::Work::wait() {
  if (state_ == nullptr) return;
  const State::Use use(*state_);
  state_->wait({number_, status_sequence_});
  if (staged_) staged_->finish();
  if (timed_bytes_ > 0) state_->record(number_, std::exchange(timed_bytes_, 0), label_);
}

std::vector<LinkInfo> Comm::links() const {
  std::vector<LinkInfo> all;
  state_->add_links(all);
  return all;
}

OperationTiming Comm::Work::timing() const {
  if (state_ == nullptr) return {};
  const State::Use use(*state_);
  return state_->engine->timing(number_);
}

Comm Comm::duplicate() const { return split(0); }

Comm Comm::split(int color, int key) const {
  const std::array<std::int32_t, 2> own{color, key};
  std::vector<std::int32_t> all(2 * static_cast<std::size_t>(world_size()));
  const Operation choices{.kind = Collective::AllGather,
                          .dtype = Dtype::Int32,
                          .count = own.size(),
                          .in = std::as_bytes(std::span(own)).data(),
                          .out = std::as_writable_bytes(std::span(all)).data()};
  const State::Use use(*state_);  // until the new communicator has been made
  if (state_->engine) staged::run(*state_, choices);
  else run_alone(choices);
  std::vector<std::pair<std::int32_t, std::int32_t>> members;  // key, rank
  for (int peer = 0; peer < world_size(); ++peer) {
    const auto at = 2 * static_cast<std::size_t>(peer);
    if (all[at] == color) members.emplace_back(all[at + 1], peer);
  }
  std::sort(members.begin(), members.end());

  auto child = std::make_shared<State>();
  child->name = fmt::format("{}/{}.{}", state_->name, state_->child_count++, color);
  child->rank = static_cast<int>(std::find(members.begin(), members.end(), std::pair{key, rank()}) - members.begin());
  child->world_size = static_cast<int>(members.size());
  child->job_rank = state_->job_rank;
  child->timeline = state_->timeline;
  child->store = state_->store;
  child->job_status = state_->job_status;
  child->seed = state_->seed;
  child->parent = state_;
  child->make_engine = state_->make_engine;
  if (child->world_size > 1) {
    state_->guarded([&] { child->join(); });
    const std::lock_guard lock(state_->family_mutex);
    std::erase_if(state_->children, [](const auto& other) { return other.expired(); });
    state_->children.push_back(child);
  }
  return Comm(std::move(child));
}

void Comm::set_step(std::uint64_t step) const {
  if (state_->job_status && state_->origin.here()) state_->job_status->set_step(step);
}

void Comm::fail(const Error& cause) const {
  state_->require_here();
  state_->guarded([&] {
    try {
      if (state_->engine) {
        state_->engine->abort(cause);
        state_->engine->check();
      }
      throw Error(cause);
    } catch (const Error& first) {
      // All ranks come to the same conclusion here, but only the one that it is about is its cause.
      if (cause.peer() == rank() || cause.peer() == Error::kNoRank) throw;
      throw Error(first.fault(), first.message(), first.rank(), first.peer(), Cause::Consequence);
    }
  });
  throw Error(cause);
}

void Comm::abort(const std::string& reason) const noexcept {
  if (!state_->engine || !state_->origin.here()) return;
  const Error cause =
      state_->last_words(fmt::format("rank {} gave up: {}", state_->rank, without_stack_frames(reason)), reason);
  // The store first: ranks that hear of it report it there, too, and the first report counts.
  if (state_->store) state_->store->fail(state_->job_rank, cause);
  state_->abort_family(cause);
}

}  // namespace paceline
