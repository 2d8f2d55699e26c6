#pragma once

#include <cstddef>
#include <vector>

#include "paceline/sync/bucket_reduction.h"

namespace paceline {

/// Values of 32 and 64 bits travel in 16: each rank rounds its own once, they are summed in float32, and the sum is
/// rounded once more. Values that have 16 bits, or are integers, travel as they are.
class RoundedReduction final : public BucketReduction {
 public:
  /// `wire` is Float16 or BFloat16.
  RoundedReduction(Comm comm, Dtype wire, BeforeSend before_send = {});

  const char* codec() const override { return to_string(wire_); }
  void begin() override { pieces_.clear(); }
  void launch(const BucketPiece& piece, const RoundCall& call) override;
  bool test(std::size_t piece) override { return pieces_[piece].work.test(); }
  void wait(std::size_t piece) override;

 private:
  struct Piece {
    BucketPiece of;
    std::span<std::byte> sent;
    Comm::Work work;
  };

  Dtype wire_for(Dtype dtype) const;
  std::span<std::byte> memory_for(const BucketPiece& piece);

  const Comm comm_;
  const Dtype wire_;
  const BeforeSend before_send_;
  std::vector<Buffer> memory_;  // by bucket
  std::vector<Piece> pieces_;
};

}  // namespace paceline
