#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "paceline/sync/bucket_reduction.h"
#include "paceline/train/data_parallel.h"

namespace paceline {

/// Whole buckets, each communicated by a program's own BucketHook. What it sends is not seen here: the bytes of a
/// bucket count, and the time from the hook's call to the end of what it returned.
class HookReduction final : public BucketReduction {
 public:
  HookReduction(Comm comm, Reduction reduction, BucketHook hook, BeforeSend before_send)
      : comm_(std::move(comm)), reduction_(reduction), hook_(std::move(hook)), before_send_(std::move(before_send)) {}

  const char* codec() const override { return "hook"; }
  bool takes_pieces() const override { return false; }
  /// What hooks return is called at the end of backward, not before.
  std::size_t most_in_flight() const override { return std::numeric_limits<std::size_t>::max(); }

  void begin() override { pieces_.clear(); }
  void launch(const BucketPiece& piece, const RoundCall& call) override;
  bool test(std::size_t) override { return true; }  // nobody knows what it does
  void wait(std::size_t piece) override {
    if (pieces_[piece]) pieces_[piece]();
  }

 private:
  const Comm comm_;
  const Reduction reduction_;
  const BucketHook hook_;
  const BeforeSend before_send_;
  std::vector<std::function<void()>> pieces_;  // what completes them
};

}  // namespace paceline
