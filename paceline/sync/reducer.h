#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/sync/bucket_plan.h"
#include "paceline/sync/bucket_reduction.h"
#include "paceline/sync/step_header.h"

namespace paceline {

struct ReducerOptions {
  std::size_t bucket_bytes = std::size_t{1} << 20;
  /// Called for each piece just before it is launched, while it is in cache. May change its values.
  std::function<void(const BucketPiece&)> before_launch = {};
};

/// What it says when it ends, beside what the reducer knows itself.
struct RoundEnd {
  std::uint64_t bad_parameter = 0;  ///< See StepEpilogue.
  std::uint64_t state_hash = 0;
};

/// Averages one model's gradients over all ranks, bucket by bucket, while backward goes on. Knows nothing of torch:
/// gradients are bytes in slots.
///
/// A round averages what has been added up since the one before: begin(), then each parameter once by store() or
/// mark_ready(), then finish(). A bucket is launched when its last parameter is there, and buckets are launched in plan
/// order, whatever order they fill in, so that all ranks launch the same ones. From a parameter's store() to the end of
/// finish() its slot belongs to the reducer. Calls from one thread; errors are Comm's, and Mismatch if ranks are not at
/// the same step of the same model.
class Reducer {
 public:
  /// Collective. Starts with reverse registration order as the expected order of arrival.
  /// `reduction` is how buckets are communicated; as they are, if null.
  Reducer(Comm comm, std::vector<ParameterInfo> parameters, ReducerOptions options,
          std::unique_ptr<BucketReduction> reduction = nullptr);

  /// Where a parameter's gradient lies, and what keeps that memory. Moves once, in the finish() of the first round, and
  /// by renew().
  struct SlotMemory {
    std::byte* data;
    std::shared_ptr<const Buffer> owner;
  };
  SlotMemory slot(std::size_t parameter) const;
  /// Whether it has a bucket of its own.
  bool alone(std::size_t parameter) const {
    return plan_.buckets[plan_.slots[parameter].bucket].parameters.size() == 1;
  }
  /// Gives one that is alone() and not launched another slot, and leaves the old memory to whoever holds it.
  void renew(std::size_t parameter);

  void begin(const RoundCall& call = {});
  /// Waits until all ranks have begun this round; what they said. Throws Mismatch if they are not at the same step.
  std::span<const StepPrologue> meet();
  /// Ends a round in which nothing was stored or marked, without reducing. All ranks must: decide by what meet() says.
  void dismiss();
  bool in_round() const { return in_round_; }
  /// Copies a gradient of parameter.bytes() into its slot and marks it ready.
  void store(std::size_t parameter, const std::byte* gradient);
  /// The gradient lies in its slot. A second time in a round is harmless before the bucket's launch and InvalidArgument
  /// after it.
  void mark_ready(std::size_t parameter);
  /// Whether (a part of) its bucket has been sent off in this round.
  bool launched(std::size_t parameter) const { return buckets_[plan_.slots[parameter].bucket].launched > 0; }
  /// Parameters of this round that were neither stored nor marked.
  std::vector<std::size_t> absent() const;
  /// As mark_ready for one of absent(): the slot holds what this rank contributes, but its backward did not reach it.
  void mark_absent(std::size_t parameter);
  /// Waits until all slots hold the result. Every parameter must have been marked. True if slots have moved.
  bool finish(const RoundEnd& end = {});

  /// Does this rank's share of what it has launched, as far as the others are there. False once all of it is complete.
  bool progress();
  /// After finish(): nothing of the round was dropped, on any rank.
  void commit() { reduction_->commit(); }

  /// Of the last round, by rank, until the next begins.
  std::span<const StepPrologue> prologues() const { return prologues_; }
  std::span<const StepEpilogue> epilogues() const { return epilogues_; }
  /// The parameter whose slot has byte `offset` of a bucket.
  std::size_t parameter_at(std::size_t bucket, std::size_t offset) const;

  /// After finish(): whether the backward of any rank reached it.
  bool took_part(std::size_t parameter) const { return took_part_.empty() || took_part_[parameter] != 0; }
  /// Pairs of ranks that computed the same gradients in the first round: fed the same batch, most likely.
  const std::vector<std::pair<int, int>>& duplicate_batches() const { return duplicate_batches_; }
  std::uint64_t rounds() const { return round_; }
  const BucketPlan& plan() const { return plan_; }
  const BucketReduction& reduction() const { return *reduction_; }

 private:
  struct Bucket {
    std::shared_ptr<Buffer> memory = nullptr;
    std::string label;
    std::size_t missing = 0;   // parameters not ready in this round
    std::size_t launched = 0;  // bytes that the reduction has
  };

  void lay_out(std::span<const std::size_t> order);
  std::shared_ptr<Buffer> memory_for(std::size_t bucket) const;
  void arrive(std::size_t parameter);
  void launch_ready_buckets();
  void launch(std::size_t bucket, std::size_t up_to);
  void require_not_launched(std::size_t parameter) const;
  [[noreturn]] void fail_for_header(int peer, const std::string& what) const;
  void check_epilogue();
  void exchange_participation();
  void settle_oldest();
  bool rebuild();

  const Comm comm_;
  const std::vector<ParameterInfo> parameters_;
  const ReducerOptions options_;
  const std::unique_ptr<BucketReduction> reduction_;
  BucketPlan plan_;
  std::vector<Bucket> buckets_;
  HeaderExchange<StepPrologue> prologue_;
  std::string prologue_label_;
  HeaderExchange<StepEpilogue> epilogue_;
  std::uint64_t round_ = 0;

  // Of the current round.
  bool in_round_ = false;
  RoundCall call_;
  std::span<const StepPrologue> prologues_;  // empty until all have met
  std::span<const StepEpilogue> epilogues_;
  std::size_t next_bucket_ = 0;      // the first that is not fully launched
  std::size_t pieces_ = 0;           // that were launched
  std::size_t settled_ = 0;          // of these, waited for
  std::vector<std::uint8_t> ready_;  // by parameter
  std::vector<std::size_t> absent_;  // marked as such
  std::vector<std::size_t> arrival_order_;
  std::uint64_t gradient_hash_ = 0;

  std::vector<std::uint8_t> took_part_;  // empty where all did
  std::vector<std::pair<int, int>> duplicate_batches_;
};

}  // namespace paceline
