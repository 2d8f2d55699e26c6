#include "paceline/comm/shm/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "paceline/base/origin.h"

namespace paceline {
namespace {

// Makes this core the line's owner, while it still finds out what to write there. (A no-op where a processor has no
// such instruction.) The line must be written soon: a peer that polls it takes it away again.
__attribute__((target("prfchw"))) void own_cache_line(const void* at) { __builtin_prefetch(at, 1); }

// Input bytes that ride in a slot's first cache line, beside the number.
constexpr std::size_t kFirstLine = 64 - offsetof(Slot, payload);

// Every line of a slot crosses over to all other cores, while slices cross half as often but wait twice.
constexpr std::size_t kOneShot = 256;

// Small enough that ranks end at about the same time, large enough that taking one costs nothing beside it.
std::size_t chunk_elements(const Operation& operation, std::size_t reach) {
  constexpr std::size_t kKiB = 1024, kFew = 16 * kKiB, kSome = 64 * kKiB, kMany = 256 * kKiB;
  const std::size_t bytes = reach * size_of(operation.dtype);
  const std::size_t chunk = bytes <= kSome ? kFew : bytes < 4 * kMany ? kSome : kMany;
  return chunk / size_of(operation.dtype);
}

// Ranks' buffers begin at different places of a page: with the same place in all, the lines that one reduction step
// reads from many ranks meet in few sets of the cache.
std::size_t first_buffer(int rank) { return ShmGroup::control_bytes() + 320 * static_cast<std::size_t>(rank) % 4096; }

}  // namespace

struct ShmEngine::Memory {
  /// Freed while operations were under way.
  struct Kept {
    std::size_t offset, bytes;
    std::uint64_t until;  // this operation is complete
  };

  Memory(std::shared_ptr<Segment> own, int rank) : segment(std::move(own)), heap(*segment, first_buffer(rank)) {}

  // Peers may still read and write what an exception frees here: given back at once, they would sum up zeros.
  static void free(void* owner, std::byte* data, std::size_t bytes) noexcept {
    auto& memory = *static_cast<Memory*>(owner);
    if (!memory.origin.here()) return;  // it is the parent's
    const std::size_t offset = memory.segment->offset_of(data).value();
    const std::uint64_t last = memory.entered.load(std::memory_order_relaxed);
    if (memory.completed.load(std::memory_order_relaxed) == last) return memory.heap.free(offset, bytes);
    try {
      const std::lock_guard lock(memory.mutex);
      memory.kept.push_back({offset, bytes, last});
    } catch (const std::bad_alloc&) {
      // Kept as long as the segment.
    }
  }

  void release_kept() {
    const std::lock_guard lock(mutex);
    std::erase_if(kept, [&](const Kept& one) {
      if (one.until > completed.load(std::memory_order_relaxed)) return false;
      heap.free(one.offset, one.bytes);
      return true;
    });
  }

  const Origin origin = {};
  std::shared_ptr<Segment> segment;
  SegmentHeap heap;
  // As the engine has them, which may be gone. Buffers may be freed by any thread.
  std::atomic<std::uint64_t> entered = 0, completed = 0;
  std::mutex mutex;
  std::vector<Kept> kept;
};

ShmEngine::ShmEngine(ShmGroup group, std::string name, Nanoseconds timeout, std::shared_ptr<const JobStatus> job_status)
    : group_(std::move(group)),
      view_(group_),
      sync_(group_, std::move(name), timeout, std::move(job_status)),
      one_shot_(view_),
      direct_(view_),
      memory_(std::make_shared<Memory>(group_.segments[group_.rank], group_.rank)) {}

ShmEngine::~ShmEngine() { sync_.leave(); }

Buffer ShmEngine::allocate(std::size_t bytes) {
  sync_.check();
  memory_->release_kept();
  const std::size_t offset = memory_->heap.allocate(bytes);
  return {memory_->segment->at(offset), bytes, memory_, &Memory::free};
}

bool ShmEngine::reaches(const void* data, std::size_t bytes) const {
  if (bytes == 0) return true;
  const Segment& own = *memory_->segment;
  const auto offset = own.offset_of(static_cast<const std::byte*>(data));
  return offset && own.has(*offset, bytes);
}

Algorithm ShmEngine::algorithm(const Operation& operation) const {
  const bool divisible = operation.kind == Collective::AllReduce || operation.kind == Collective::Reduce;
  switch (operation.algorithm) {
    case Algorithm::Auto:
      if (ShmOneShot::fits(operation, view_.world_size(), kOneShot)) return Algorithm::OneShot;
      return divisible && sync_.oversubscribed() ? Algorithm::ChunkQueue : Algorithm::Slices;
    case Algorithm::OneShot:
      if (ShmOneShot::fits(operation, view_.world_size(), Slot::kPayloadBytes)) return Algorithm::OneShot;
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("algorithm one_shot takes up to {} bytes of input a rank", Slot::kPayloadBytes));
    case Algorithm::ChunkQueue:
      if (divisible) return Algorithm::ChunkQueue;
      throw Error(ErrorCode::InvalidArgument, "algorithm chunk_queue is there for all_reduce and reduce");
    case Algorithm::Slices: return Algorithm::Slices;
    case Algorithm::Direct:
    case Algorithm::Ring:
    case Algorithm::Hierarchical: break;
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("there is no algorithm {} in shared memory; it has one_shot, slices and chunk_queue",
                          to_string(operation.algorithm)));
}

std::uint64_t ShmEngine::start(const Operation& operation, Algorithm chosen) {
  sync_.check();
  if (chosen == Algorithm::OneShot && operation.count * size_of(operation.dtype) <= kFirstLine) {
    own_cache_line(&sync_.control(view_.rank).slot(entered_ + 1));
  }
  if (entered_ - completed_ >= RankControl::kOutstanding) wait(entered_ + 1 - RankControl::kOutstanding);
  enter(operation, chosen);
  advance(Share::Fair);
  return entered_;
}

void ShmEngine::enter(const Operation& operation, Algorithm algorithm) {
  const std::uint64_t number = entered_ + 1;
  // What others read of the operation before that one, they have read.
  if (number > RankControl::kOutstanding) sync_.wait_finish(number - RankControl::kOutstanding);
  RankControl& own = sync_.control(view_.rank);
  Slot& slot = own.slot(number);
  SlotDetails& details = own.details_of(number);
  sign(operation, number, details.signature);
  if (operation.timed) details.arrived_ns = now().count();
  const std::uint64_t digest = digest_of(details.signature);
  // From here to the slot's number without delay: a peer that polls it takes the cache line away after each write.
  if (algorithm == Algorithm::ChunkQueue) ChunkQueue::prepare(own, number);
  if (algorithm == Algorithm::OneShot) one_shot_.put_input(operation, slot);
  else direct_.put_operands(operation, slot);
  slot.digest = digest;
  slot.weight = operation.weight;
  entered_ = number;
  memory_->entered.store(number, std::memory_order_relaxed);
  const bool quiet = algorithm == Algorithm::OneShot;
  if (quiet) sync_.publish_arrival_quietly(number);
  else sync_.publish_arrival(number);
  entered(number) = {operation, algorithm, operation.count, digest, {}};
  // One that can be done at once ends with waking sleepers, a moment later.
  if (quiet && (shared_ + 1 != number || !sync_.everyone_arrived(number))) sync_.wake_sleepers();
}

bool ShmEngine::test(std::uint64_t operation) {
  if (operation <= completed_) return true;
  sync_.check();
  advance(Share::Fair);
  note_completions();
  return operation <= completed_;
}

void ShmEngine::wait(std::uint64_t operation) {
  while (shared_ < operation) {
    sync_.wait_arrival(shared_ + 1);
    advance(Share::All);
  }
  note_completions();
  while (completed_ < operation) {
    sync_.wait(ShmSync::Stage::Finish, completed_ + 1, [&] { return is_complete(completed_ + 1); });
    note_completions();
  }
}

void ShmEngine::advance(Share share) {
  while (shared_ < entered_ && sync_.everyone_arrived(shared_ + 1)) {
    const std::uint64_t number = shared_ + 1;
    check_agreement(number);
    if (!(entered(number).operation.timed ? do_timed_share(number, share) : do_share(number, share))) return;
    shared_ = number;
    sync_.publish_finish(number);
  }
}

void ShmEngine::check_agreement(std::uint64_t number) {
  for (int peer = 0; peer < view_.world_size(); ++peer) {
    if (peer != view_.rank && view_.slot(peer, number).digest != entered(number).digest) fail_for_mismatch(number);
  }
}

// All ranks make the same comparison, with rank 0's, so all of them name the same two that differ.
void ShmEngine::fail_for_mismatch(std::uint64_t number) {
  int peer = 1;
  while (view_.slot(peer, number).digest == view_.slot(0, number).digest) ++peer;
  sync_.fail_and_throw(mismatch(view_.rank, sync_.control(0).details_of(number).signature, peer,
                                sync_.control(peer).details_of(number).signature));
}

// A rank that gets something else than it expects names the two; the others wait for it to do so.
void ShmEngine::fail_for_counts(std::uint64_t number) {
  try {
    direct_.check_counts(entered(number).operation, number);
  } catch (const Error& error) {
    sync_.fail_and_throw(error);
  }
  sync_.wait(ShmSync::Stage::Finish, number, [] { return false; });
}

bool ShmEngine::do_timed_share(std::uint64_t number, Share share) {
  const Nanoseconds begin = now();
  const bool done = do_share(number, share);
  const Nanoseconds end = now();
  entered(number).working += end - begin;
  if (done) sync_.control(view_.rank).details_of(number).finished_ns.store(end.count(), std::memory_order_relaxed);
  return done;
}

// False if some of it is left, for others or for a later call.
bool ShmEngine::do_share(std::uint64_t number, Share share) {
  Entered& entry = entered(number);
  if (entry.algorithm == Algorithm::OneShot) {
    one_shot_.finish(entry.operation, number);
    return true;
  }
  entry.carried_out = direct_.common_reach(entry.operation, number);
  if (entry.algorithm == Algorithm::ChunkQueue) return take_chunks(number, share);
  if (!direct_.counts_agree(entry.operation, number)) fail_for_counts(number);
  direct_.do_share(entry.operation, number, entry.carried_out);
  return true;
}

bool ShmEngine::take_chunks(std::uint64_t number, Share share) {
  const Entered& entry = entered(number);
  const std::size_t chunk = chunk_elements(entry.operation, entry.carried_out);
  const std::size_t chunks = (entry.carried_out + chunk - 1) / chunk;
  const auto world = static_cast<std::size_t>(view_.world_size());
  const std::size_t most = share == Share::All ? chunks : (chunks + world - 1) / world;
  ChunkQueue queue = this->chunk_queue(number);
  bool own = true;
  for (std::size_t taken = 0; taken < most; ++taken) {
    auto mine = own ? queue.take_own() : std::nullopt;
    if (!mine) {
      if (own && chunks > 4) sched_yield();
      own = false;
      mine = queue.take_any();
    }
    if (!mine) return true;
    const std::size_t from = *mine * chunk;
    direct_.reduce_range(entry.operation, number, from, std::min(chunk, entry.carried_out - from));
    if (queue.give_back()) sync_.wake_sleepers();
  }
  return most == chunks;
}

ChunkQueue ShmEngine::chunk_queue(std::uint64_t number) const {
  const Entered& entry = entered(number);
  const std::size_t chunk = chunk_elements(entry.operation, entry.carried_out);
  return {view_, number, static_cast<std::uint32_t>((entry.carried_out + chunk - 1) / chunk)};
}

bool ShmEngine::is_complete(std::uint64_t number) {
  switch (entered(number).algorithm) {
    case Algorithm::OneShot: return true;
    case Algorithm::ChunkQueue: return chunk_queue(number).all_done();
    default: return sync_.everyone_finished(number);
  }
}

void ShmEngine::note_completions() {
  while (completed_ < shared_ && is_complete(completed_ + 1)) ++completed_;
  memory_->completed.store(completed_, std::memory_order_relaxed);
}

std::size_t ShmEngine::carried_out(std::uint64_t operation) const { return entered(operation).carried_out; }

// Nobody enters operation n + 2 x kOutstanding before this rank has entered n + kOutstanding, so what is read here is
// still about this operation, or, of a rank that did not time it, about an earlier one.
OperationTiming ShmEngine::timing(std::uint64_t operation) const {
  if (entered_ - operation >= RankControl::kOutstanding) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("when operation #{} ran is no longer known: ask before {} more are started", operation,
                            RankControl::kOutstanding));
  }
  std::int64_t last_arrival = 0, completed = 0;
  for (int peer = 0; peer < view_.world_size(); ++peer) {
    SlotDetails& details = sync_.control(peer).details_of(operation);
    last_arrival = std::max(last_arrival, details.arrived_ns);
    completed = std::max(completed, details.finished_ns.load(std::memory_order_relaxed));
  }
  return {Nanoseconds(sync_.control(view_.rank).details_of(operation).arrived_ns), Nanoseconds(last_arrival),
          Nanoseconds(completed), entered(operation).working};
}

}  // namespace paceline
