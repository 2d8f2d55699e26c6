#include "paceline/sync/reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "paceline/base/bytes.h"
#include "paceline/base/hash.h"
#include "paceline/sync/exact_reduction.h"
#include "paceline/sync/step_decisions.h"

namespace paceline {
namespace {

std::uint64_t hash_unless_zero(const Buffer& buffer) {
  const std::span<const std::byte> data(buffer.data(), buffer.bytes());
  const bool zero = std::all_of(data.begin(), data.end(), [](std::byte b) { return b == std::byte{0}; });
  return zero ? 0 : hash_of(data);
}

// "step " and nine digits, a space, eight more digits.
constexpr std::size_t kLabelBytes = 24;

ReducerOptions checked(ReducerOptions options) {
  if (options.bucket_bytes == 0) throw Error(ErrorCode::InvalidArgument, "bucket_bytes must be more than 0");
  // Pieces hold whole elements of any type. What cannot be rounded up is one bucket for all.
  constexpr std::size_t kStep = 64, kMost = std::numeric_limits<std::size_t>::max() / kStep * kStep;
  options.bucket_bytes = std::min(options.bucket_bytes, kMost);
  options.bucket_bytes = (options.bucket_bytes + (kStep - 1)) / kStep * kStep;
  return options;
}

}  // namespace

Reducer::Reducer(Comm comm, std::vector<ParameterInfo> parameters, ReducerOptions options,
                 std::unique_ptr<BucketReduction> reduction)
    : comm_(std::move(comm)),
      parameters_(std::move(parameters)),
      options_(checked(std::move(options))),
      reduction_(reduction ? std::move(reduction) : std::make_unique<ExactReduction>(comm_)),
      prologue_(comm_),
      epilogue_(comm_),
      ready_(parameters_.size()) {
  std::vector<std::size_t> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  lay_out(order);
  for (std::size_t b = 0; b < buckets_.size(); ++b) buckets_[b].memory = memory_for(b);
}

// Buckets without memory.
void Reducer::lay_out(std::span<const std::size_t> order) {
  plan_ = plan_buckets(parameters_, order, options_.bucket_bytes);
  buckets_.clear();
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) buckets_.push_back({.label = fmt::format("bucket {}", b)});
}

std::shared_ptr<Buffer> Reducer::memory_for(std::size_t bucket) const {
  return std::make_shared<Buffer>(comm_.allocate(plan_.buckets[bucket].bytes));
}

Reducer::SlotMemory Reducer::slot(std::size_t parameter) const {
  const BucketPlan::Slot& slot = plan_.slots[parameter];
  const auto& memory = buckets_[slot.bucket].memory;
  return {memory->data() + slot.offset, memory};
}

void Reducer::renew(std::size_t parameter) {
  const std::size_t bucket = plan_.slots[parameter].bucket;
  buckets_[bucket].memory = memory_for(bucket);
}

void Reducer::begin(const RoundCall& call) {
  in_round_ = true;
  call_ = call;
  prologues_ = {};
  epilogues_ = {};
  comm_.set_step(round_ + 1);
  next_bucket_ = 0;
  gradient_hash_ = 0;
  std::fill(ready_.begin(), ready_.end(), 0);
  absent_.clear();
  arrival_order_.clear();
  pieces_ = settled_ = 0;
  reduction_->begin();
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].missing = plan_.buckets[b].parameters.size();
    buckets_[b].launched = 0;
  }
  const ScopedPhase phase(comm_.timeline(), Phase::Communication);
  const std::uint64_t plan = plan_.hash();
  // Labels are compared before any data is combined; what the header says is read after some of it was.
  prologue_label_.reserve(kLabelBytes);  // once
  prologue_label_.clear();
  fmt::format_to(std::back_inserter(prologue_label_), "step {} {:08x}", round_ % 1'000'000'000, plan >> 32);
  prologue_.start({round_, plan, call.weight, call.backwards, call.flags, call.changes}, prologue_label_.c_str());
}

std::span<const StepPrologue> Reducer::meet() {
  if (!prologues_.empty()) return prologues_;
  const ScopedPhase phase(comm_.timeline(), Phase::Communication);
  const auto all = prologue_.wait();
  for (int peer = 0; peer < comm_.world_size(); ++peer) {
    const StepPrologue& said = all[peer];
    if (!(said.weight >= 0 && said.weight <= std::numeric_limits<double>::max())) {
      fail_for_header(peer, fmt::format("a weight of {}", said.weight));
    }
    if ((said.flags & ~StepPrologue::kFlags) != 0) fail_for_header(peer, fmt::format("flags {:#x}", said.flags));
  }
  for (int peer = 1; peer < comm_.world_size(); ++peer) {
    if (all[peer].step == all[0].step && all[peer].signature == all[0].signature) continue;
    comm_.fail(
        {ErrorCode::Mismatch,
         fmt::format("rank 0 is at step {} of a model with plan {:016x}, but rank {} at step {} with {:016x}; do "
                     "all ranks train the same model, and call backward equally often?",
                     all[0].step, all[0].signature, peer, all[peer].step, all[peer].signature),
         comm_.rank(), peer});
  }
  prologues_ = all;
  return prologues_;
}

// What no rank says, of a header that came with the right checksums.
void Reducer::fail_for_header(int peer, const std::string& what) const {
  comm_.fail({ErrorCode::Corrupt,
              fmt::format("rank {} says of step {} what none of this build says: {}. Nothing of the step is used; do "
                          "all ranks run the same program?",
                          peer, round_, what),
              comm_.rank(), peer});
}

void Reducer::dismiss() { in_round_ = false; }

void Reducer::store(std::size_t parameter, const std::byte* gradient) {
  require_not_launched(parameter);
  const BucketPlan::Slot& at = plan_.slots[parameter];
  std::byte* to = buckets_[at.bucket].memory->data() + at.offset;
  const std::size_t bytes = parameters_[parameter].bytes();
  const bool pipelined = bytes > options_.bucket_bytes && at.bucket == next_bucket_ && !ready_[parameter] &&
                         (round_ > 0 || at.bucket > 0) && reduction_->takes_pieces();
  if (!pipelined) {
    copy_bytes(to, gradient, bytes);
    return mark_ready(parameter);
  }
  // Alone in its bucket: each piece is on its way while it is still in cache.
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(options_.bucket_bytes, bytes - done);
    copy_bytes(to + done, gradient + done, piece);
    done += piece;
    if (done < bytes) launch(at.bucket, done);
  }
  arrive(parameter);
}

void Reducer::mark_ready(std::size_t parameter) {
  require_not_launched(parameter);
  if (!ready_[parameter]) arrive(parameter);
}

void Reducer::mark_absent(std::size_t parameter) {
  absent_.push_back(parameter);
  arrive(parameter);
}

void Reducer::require_not_launched(std::size_t parameter) const {
  if (!launched(parameter)) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the gradient of '{}' arrived again after it was sent off: its part of the graph was run "
                          "backward twice in one backward (activation checkpointing that re-enters autograd does this)",
                          parameters_[parameter].name),
              comm_.rank());
}

void Reducer::arrive(std::size_t parameter) {
  ready_[parameter] = 1;
  arrival_order_.push_back(parameter);
  --buckets_[plan_.slots[parameter].bucket].missing;
  launch_ready_buckets();
}

void Reducer::launch_ready_buckets() {
  const std::size_t before = next_bucket_;
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].missing == 0) {
    if (round_ == 0 && next_bucket_ == 0 && comm_.world_size() > 1)
      gradient_hash_ = hash_unless_zero(*buckets_[0].memory);
    launch(next_bucket_, plan_.buckets[next_bucket_].bytes);
    ++next_bucket_;
  }
  // Peers may wait for this rank's share of what it launched before.
  if (before == next_bucket_ && pieces_ > settled_) {
    const ScopedPhase phase(comm_.timeline(), Phase::Communication);
    reduction_->test(pieces_ - 1);
  }
}

// Hands a bucket to the reduction up to byte `up_to`, in pieces that stay in cache.
void Reducer::launch(std::size_t index, std::size_t up_to) {
  Bucket& bucket = buckets_[index];
  const std::size_t whole = plan_.buckets[index].bytes;
  const std::size_t most = reduction_->takes_pieces() ? options_.bucket_bytes : whole;
  const ScopedPhase phase(comm_.timeline(), Phase::Communication);
  while (bucket.launched < up_to) {
    if (pieces_ - settled_ >= reduction_->most_in_flight()) settle_oldest();
    const std::size_t bytes = std::min(up_to - bucket.launched, most);
    const BucketPiece piece{.bucket = index,
                            .offset = bucket.launched,
                            .bucket_bytes = whole,
                            .dtype = plan_.buckets[index].dtype,
                            .bytes = {bucket.memory->data() + bucket.launched, bytes},
                            .label = bucket.label.c_str()};
    if (options_.before_launch) options_.before_launch(piece);
    reduction_->launch(piece, call_);
    bucket.launched += bytes;
    ++pieces_;
  }
}

std::vector<std::size_t> Reducer::absent() const {
  std::vector<std::size_t> absent;
  for (std::size_t parameter = 0; parameter < ready_.size(); ++parameter) {
    if (!ready_[parameter]) absent.push_back(parameter);
  }
  return absent;
}

bool Reducer::finish(const RoundEnd& end) {
  const ScopedPhase phase(comm_.timeline(), Phase::Communication);
  epilogue_.start({absent_.size(), gradient_hash_, end.bad_parameter, end.state_hash}, "step ends");
  meet();
  while (settled_ < pieces_) settle_oldest();
  check_epilogue();
  const bool moved = round_ == 0 && rebuild();
  in_round_ = false;
  ++round_;
  return moved;
}

void Reducer::settle_oldest() { reduction_->wait(settled_++); }

void Reducer::check_epilogue() {
  const auto all = epilogues_ = epilogue_.wait();
  for (int peer = 0; peer < comm_.world_size(); ++peer) {
    const StepEpilogue& said = all[peer];
    for (const std::uint64_t number : {said.absent, said.bad_parameter}) {
      if (number <= parameters_.size()) continue;
      fail_for_header(peer, fmt::format("parameter {} of {}", number, parameters_.size()));
    }
  }
  took_part_.clear();
  if (std::any_of(all.begin(), all.end(), [](const StepEpilogue& e) { return e.absent != 0; })) {
    exchange_participation();
  }
  if (round_ == 0) duplicate_batches_ = same_gradients(all);
}

void Reducer::exchange_participation() {
  took_part_ = ready_;
  for (const std::size_t parameter : absent_) took_part_[parameter] = 0;
  comm_.all_reduce<std::uint8_t>(took_part_, ReduceOp::Max);
}

bool Reducer::progress() {
  for (std::size_t piece = settled_; piece < pieces_; ++piece) {
    if (!reduction_->test(piece)) return true;
  }
  return false;
}

std::size_t Reducer::parameter_at(std::size_t bucket, std::size_t offset) const {
  const auto& of_bucket = plan_.buckets[bucket].parameters;
  const auto after = std::find_if(of_bucket.begin(), of_bucket.end(),
                                  [&](std::size_t parameter) { return plan_.slots[parameter].offset > offset; });
  return after == of_bucket.begin() ? *after : *std::prev(after);
}

// Once, before anything depends on the places of slots: in rank 0's order of arrival.
bool Reducer::rebuild() {
  if (comm_.world_size() == 1) return false;  // nobody waits for a bucket
  std::vector<std::int64_t> order(arrival_order_.begin(), arrival_order_.end());
  comm_.broadcast<std::int64_t>(order, 0);
  std::vector<std::size_t> new_order(order.begin(), order.end());
  std::vector<char> named(parameters_.size());
  for (const std::size_t parameter : new_order) {
    if (parameter < named.size() && std::exchange(named[parameter], 1) == 0) continue;
    fail_for_header(0, fmt::format("an order with parameter {} of {}", parameter, parameters_.size()));
  }
  const BucketPlan new_plan = plan_buckets(parameters_, new_order, options_.bucket_bytes);
  if (new_plan.hash() == plan_.hash()) return false;
  const BucketPlan old_plan = std::move(plan_);
  const std::vector<Bucket> old = std::move(buckets_);
  lay_out(new_order);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const auto& parameters = plan_.buckets[b].parameters;
    const std::size_t before = old_plan.slots[parameters.front()].bucket;
    if (parameters.size() == 1 && old_plan.buckets[before].parameters.size() == 1) {
      buckets_[b].memory = old[before].memory;
      continue;
    }
    buckets_[b].memory = memory_for(b);
    for (const std::size_t parameter : parameters) {
      const BucketPlan::Slot& from = old_plan.slots[parameter];
      copy_bytes(slot(parameter).data, old[from.bucket].memory->data() + from.offset, parameters_[parameter].bytes());
    }
  }
  return true;
}

}  // namespace paceline
