#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "paceline/sync/bucket_reduction.h"

namespace paceline {

/// Gradients travel as they are, each piece in one all-reduce in place. The mean's division is part of it.
class ExactReduction final : public BucketReduction {
 public:
  explicit ExactReduction(Comm comm, BeforeSend before_send = {})
      : comm_(std::move(comm)), before_send_(std::move(before_send)) {}

  const char* codec() const override { return "none"; }
  void begin() override { pieces_.clear(); }
  void launch(const BucketPiece& piece, const RoundCall& call) override;
  bool test(std::size_t piece) override { return pieces_[piece].test(); }
  void wait(std::size_t piece) override { pieces_[piece].wait(); }

 private:
  const Comm comm_;
  const BeforeSend before_send_;
  std::vector<Comm::Work> pieces_;
};

}  // namespace paceline
