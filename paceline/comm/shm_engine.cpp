#include "paceline/comm/shm_engine.h"

#include <algorithm>
#include <cstring>

namespace paceline {

struct ShmEngine::Memory {
  explicit Memory(std::shared_ptr<Segment> own) : segment(std::move(own)), heap(*segment, ShmGroup::control_bytes()) {}

  static void free(void* owner, std::byte* data, std::size_t bytes) noexcept {
    auto& memory = *static_cast<Memory*>(owner);
    memory.heap.free(static_cast<std::size_t>(data - memory.segment->data()), bytes);
  }

  std::shared_ptr<Segment> segment;
  SegmentHeap heap;
};

ShmEngine::ShmEngine(ShmGroup group, std::string name, Nanoseconds timeout)
    : group_(std::move(group)),
      sync_(group_, std::move(name), timeout),
      collectives_(group_),
      memory_(std::make_shared<Memory>(group_.segments[group_.rank])) {}

ShmEngine::~ShmEngine() { sync_.leave(); }

Buffer ShmEngine::allocate(std::size_t bytes) {
  sync_.check();
  const std::size_t offset = memory_->heap.allocate(bytes);
  return {memory_->segment->data() + offset, bytes, memory_, &Memory::free};
}

bool ShmEngine::reaches(const void* data, std::size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(data);
  const Segment& own = *memory_->segment;
  return at >= own.data() && at + bytes <= own.data() + own.bytes();
}

std::uint64_t ShmEngine::start(const Operation& operation) {
  sync_.check();
  if (entered_ - completed_ >= RankControl::kOutstanding) wait(entered_ + 1 - RankControl::kOutstanding);
  enter(operation);
  advance();
  return entered_;
}

void ShmEngine::enter(const Operation& operation) {
  const std::uint64_t number = ++entered_;
  operations_[number % RankControl::kSlots] = operation;
  Slot& slot = group_.control(group_.rank).slot(number);
  slot.signature = signature_of(operation, number);
  slot.weight = operation.weight;
  if (!ShmCollectives::is_inline(operation, group_.world_size())) {
    slot.in_offset = static_cast<std::uint64_t>(operation.in - memory_->segment->data());
  } else {
    slot.in_offset = Slot::kInline;
    const std::size_t bytes = ShmCollectives::input_bytes(operation, group_.world_size());
    if (bytes > 0 && operation.in != nullptr) std::memcpy(slot.payload, operation.in, bytes);
  }
  slot.arrived_ns = now().count();
  sync_.publish_arrival(number);
}

bool ShmEngine::test(std::uint64_t operation) {
  if (operation <= completed_) return true;
  sync_.check();
  advance();
  note_completions();
  return operation <= completed_;
}

void ShmEngine::wait(std::uint64_t operation) {
  while (shared_ < operation) {
    sync_.wait_arrival(shared_ + 1);
    advance();
  }
  if (operation <= completed_) return;
  sync_.wait_finish(operation);
  note_completions();
}

void ShmEngine::advance() {
  while (shared_ < entered_ && sync_.everyone_arrived(shared_ + 1)) {
    const std::uint64_t number = shared_ + 1;
    check_agreement(number);
    collectives_.do_share(operations_[number % RankControl::kSlots], number);
    group_.control(group_.rank).slot(number).finished_ns = now().count();
    shared_ = number;
    sync_.publish_finish(number);
  }
}

// All ranks make the same comparison, with rank 0's, so all of them find the same two that differ.
void ShmEngine::check_agreement(std::uint64_t number) {
  const Signature& first = group_.control(0).slot(number).signature;
  for (int peer = 1; peer < group_.world_size(); ++peer) {
    const Signature& theirs = group_.control(peer).slot(number).signature;
    if (std::memcmp(&first, &theirs, sizeof first) == 0) continue;
    sync_.fail_and_throw(mismatch(group_.rank, first, peer, theirs));
  }
}

// Before this rank enters operation n, it has noted all up to n - kOutstanding, so the slots read here are not yet
// written again by anyone.
void ShmEngine::note_completions() {
  while (completed_ < shared_ && sync_.everyone_finished(completed_ + 1)) {
    const std::uint64_t number = ++completed_;
    std::int64_t last_arrival = 0, completed = 0;
    for (int peer = 0; peer < group_.world_size(); ++peer) {
      const Slot& slot = group_.control(peer).slot(number);
      last_arrival = std::max(last_arrival, slot.arrived_ns);
      completed = std::max(completed, slot.finished_ns);
    }
    timings_[number % RankControl::kSlots] = {Nanoseconds(group_.control(group_.rank).slot(number).arrived_ns),
                                              Nanoseconds(last_arrival), Nanoseconds(completed)};
  }
}

OperationTiming ShmEngine::timing(std::uint64_t operation) const { return timings_[operation % RankControl::kSlots]; }

}  // namespace paceline
