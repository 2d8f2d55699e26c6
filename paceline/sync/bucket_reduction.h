#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>

#include "paceline/comm/comm.h"

namespace paceline {

/// What one rank says of a round when it begins.
struct RoundCall {
  ReduceOp op = ReduceOp::Mean;  ///< The same on all ranks: Mean or Sum.
  double weight = 1;             ///< Of this rank in a Mean; with 0 its slots are not read.
  std::uint32_t backwards = 1;   ///< Whose gradients the slots hold the sum of.
  std::uint32_t flags = 0;       ///< StepPrologue::kEnded, kStop, kLoss
  std::uint64_t changes = 0;     ///< See StepPrologue.
};

/// Bytes of a bucket whose gradients are all there; `offset` is where they begin in it.
struct BucketPiece {
  std::size_t bucket;
  std::size_t offset;
  std::size_t bucket_bytes;  ///< Of the whole bucket.
  Dtype dtype;
  std::span<std::byte> bytes;
  const char* label;  ///< The bucket's, in messages and reports. Lives as long as the round.
};

/// Called with each piece's values as they are communicated, before that begins, while they are in cache.
using BeforeSend = std::function<void(const BucketPiece& piece, Dtype sent_as, std::span<const std::byte> sent)>;

/// How pieces of buckets become the result on all ranks: as they are, rounded, by a program's own communication. The
/// reducer launches pieces in the same order on all ranks and knows nothing of what happens to them.
///
/// Pieces are numbered from 0 in each round, in the order of launch(). From launch() to wait() a piece's bytes belong
/// to the reduction; then they hold the result, the same bits on all ranks. What a reduction sends is in the timeline,
/// as long as it is sent by blocking calls or by operations that are `timed`. Calls from one thread; errors are Comm's.
class BucketReduction {
 public:
  virtual ~BucketReduction() = default;

  /// As the report names it: "none" where gradients travel as they are.
  virtual const char* codec() const = 0;
  /// Whether a bucket may come in several pieces; else each comes whole.
  virtual bool takes_pieces() const { return true; }
  /// Pieces that may be under way at a time. Engines know of the last 64 operations when they ran, headers among them.
  virtual std::size_t most_in_flight() const { return 48; }

  /// A round begins: pieces are numbered anew. All of the round before were waited for.
  virtual void begin() = 0;
  virtual void launch(const BucketPiece& piece, const RoundCall& call) = 0;
  /// Does this rank's share, as far as the others are there. True if the piece needs no more of that.
  virtual bool test(std::size_t piece) = 0;
  /// Blocks until the piece holds the result. Once for each, in order.
  virtual void wait(std::size_t piece) = 0;
  /// The round counts on all ranks: nothing of it was dropped. What is kept for later rounds changes only here.
  virtual void commit() {}
};

}  // namespace paceline
