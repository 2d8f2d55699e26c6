#pragma once

#include <cstdint>
#include <vector>

namespace paceline {

enum class SampleOrder {
  Shuffled,    ///< A new random order each epoch, the same on all ranks.
  Sequential,  ///< 0, 1, 2, ...
};

/// What happens when the data set's size is not a multiple of the world size.
enum class SampleTail {
  Pad,   ///< Each rank has ceil(size / world): the first samples of the epoch's order come once more at its end.
  Drop,  ///< Each rank has floor(size / world): the last size % world samples of the order are left out.
  /// Each sample once; the first size % world ranks have one more than the others, so of fewer samples than ranks some
  /// ranks have none. For evaluation.
  Exact,
};

/// All ranks must pass the same values, but for `rank`.
struct SamplerOptions {
  std::uint64_t size = 0;  ///< Samples in the data set; at least one for each rank, but with SampleTail::Exact.
  int rank = 0;
  int world_size = 1;
  std::uint64_t seed = 0;
  SampleOrder order = SampleOrder::Shuffled;
  SampleTail tail = SampleTail::Pad;
};

/// Decides which rank reads which sample in which order, without communication.
///
/// An epoch's order is a permutation of 0 .. size-1 that depends on seed, size and epoch only: a Fisher-Yates shuffle
/// over std::mt19937_64 in which all steps are defined here, so it is the same on every machine and in every build.
/// Rank r of W reads positions r, r + W, r + 2W, ... of it. With B samples per batch, step k of all ranks together thus
/// covers the positions from k*W*B up to (k+1)*W*B, as one worker with batches of W*B would.
class Sampler {
 public:
  /// Error InvalidArgument when size is 0, rank is not in 0 .. world_size-1, or there are more ranks than samples (but
  /// with SampleTail::Exact).
  explicit Sampler(const SamplerOptions& options);

  /// This rank's samples of epoch(), in the order to read them, from where resume_at() said; then goes on to the next
  /// epoch.
  std::vector<std::uint64_t> next_epoch();
  /// The same for any epoch. Needs 4 bytes a sample of the data set while it runs (8 from 2^32 samples on; none when
  /// sequential), besides the result's 8 bytes a sample of this rank.
  /// With `done`, of the rest after the first `done` of the order, which is shared out like a whole one.
  std::vector<std::uint64_t> indices(std::uint64_t epoch, std::uint64_t done = 0) const;

  /// The epoch whose samples next_epoch() will return, from 0.
  std::uint64_t epoch() const { return epoch_; }
  /// Goes to an epoch, of which all ranks together have read the first `done` samples, to resume a run; of how many
  /// ranks it had does not matter. An epoch that is done is followed by the next.
  void resume_at(std::uint64_t epoch, std::uint64_t done = 0);
  /// Samples of the next epoch that are done, of all ranks.
  std::uint64_t done() const { return done_; }
  /// How many samples this rank reads in each epoch.
  std::uint64_t samples_per_epoch() const;

 private:
  std::uint64_t share_of(std::uint64_t samples) const;

  SamplerOptions options_;
  std::uint64_t epoch_ = 0;
  std::uint64_t done_ = 0;
};

}  // namespace paceline
