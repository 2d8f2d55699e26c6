#include "paceline/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "paceline/base/error.h"

namespace paceline {
namespace {

using Samples = std::vector<std::uint64_t>;

struct Job {
  std::uint64_t size;
  int world;
  std::uint64_t seed;
  std::uint64_t epoch;
};

std::ostream& operator<<(std::ostream& out, const Job& job) {
  return out << "size " << job.size << ", world " << job.world << ", seed " << job.seed << ", epoch " << job.epoch;
}

/// Each case's seed is the generator's, so a failing one can be run alone.
Job random_job(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const int world = static_cast<int>(1 + random() % 8);
  return {static_cast<std::uint64_t>(world) + random() % 300, world, random(), random() % 1000};
}

Samples share(const Job& job, int rank, SampleTail tail, SampleOrder order = SampleOrder::Shuffled) {
  return Sampler({job.size, rank, job.world, job.seed, order, tail}).indices(job.epoch);
}

/// What the ranks together read in the order of the steps: position p is rank p % world's.
Samples interleaved(const Job& job, SampleTail tail, SampleOrder order = SampleOrder::Shuffled) {
  std::vector<Samples> shares;
  std::size_t longest = 0;
  for (int rank = 0; rank < job.world; ++rank) {
    shares.push_back(share(job, rank, tail, order));
    longest = std::max(longest, shares.back().size());
  }
  Samples all;
  for (std::size_t i = 0; i < longest; ++i) {
    for (const Samples& samples : shares) {
      if (i < samples.size()) all.push_back(samples[i]);
    }
  }
  return all;
}

Samples sorted(Samples samples) {
  std::sort(samples.begin(), samples.end());
  return samples;
}

Samples counting(std::uint64_t size) {
  Samples all(size);
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

TEST(Sampler, ExactReadsEachSampleOnceAndEvenly) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Job job = random_job(seed);
    SCOPED_TRACE(testing::Message() << job);
    EXPECT_EQ(sorted(interleaved(job, SampleTail::Exact)), counting(job.size));
    const std::size_t first = share(job, 0, SampleTail::Exact).size();
    const std::size_t last = share(job, job.world - 1, SampleTail::Exact).size();
    EXPECT_LE(first - last, 1u);
    if (HasFailure()) return;
  }
}

TEST(Sampler, ExactLeavesRanksWithoutSamplesWhereThereAreFewer) {
  for (const std::uint64_t size : {1u, 2u, 5u}) {
    Samples read;
    for (int rank = 0; rank < 6; ++rank) {
      Sampler sampler({.size = size, .rank = rank, .world_size = 6, .tail = SampleTail::Exact});
      EXPECT_EQ(sampler.samples_per_epoch(), static_cast<std::uint64_t>(rank) < size ? 1u : 0u);
      for (const std::uint64_t sample : sampler.next_epoch()) read.push_back(sample);
      EXPECT_EQ(sampler.epoch(), 1u);
    }
    std::sort(read.begin(), read.end());
    EXPECT_EQ(read, counting(size));
  }
}

TEST(Sampler, PadRepeatsTheFirstSamplesOfTheEpoch) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Job job = random_job(seed);
    SCOPED_TRACE(testing::Message() << job);
    const Samples once = interleaved(job, SampleTail::Exact);
    Samples padded = once;
    const auto world = static_cast<std::uint64_t>(job.world);
    for (std::uint64_t i = 0; padded.size() % world != 0; ++i) padded.push_back(once[i]);
    EXPECT_EQ(interleaved(job, SampleTail::Pad), padded);
    for (int rank = 0; rank < job.world; ++rank) {
      EXPECT_EQ(share(job, rank, SampleTail::Pad).size(), (job.size + world - 1) / world);
    }
    if (HasFailure()) return;
  }
}

TEST(Sampler, DropLeavesOutTheEnd) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Job job = random_job(seed);
    SCOPED_TRACE(testing::Message() << job);
    const auto world = static_cast<std::uint64_t>(job.world);
    Samples cut = interleaved(job, SampleTail::Exact);
    cut.resize(job.size / world * world);
    EXPECT_EQ(interleaved(job, SampleTail::Drop), cut);
    if (HasFailure()) return;
  }
}

TEST(Sampler, SamplesPerEpochIsTheLengthOfTheShare) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Job job = random_job(seed);
    SCOPED_TRACE(testing::Message() << job);
    for (SampleTail tail : {SampleTail::Pad, SampleTail::Drop, SampleTail::Exact}) {
      for (int rank = 0; rank < job.world; ++rank) {
        const Sampler sampler({job.size, rank, job.world, job.seed, SampleOrder::Shuffled, tail});
        EXPECT_EQ(sampler.samples_per_epoch(), sampler.indices(job.epoch).size());
      }
    }
  }
}

TEST(Sampler, TheOrderDoesNotDependOnTheWorldSize) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Job job = random_job(seed);
    SCOPED_TRACE(testing::Message() << job);
    EXPECT_EQ(interleaved(job, SampleTail::Exact), interleaved({job.size, 1, job.seed, job.epoch}, SampleTail::Exact));
  }
}

TEST(Sampler, SequentialCounts) {
  const Job job{23, 4, 9, 3};
  EXPECT_EQ(interleaved(job, SampleTail::Exact, SampleOrder::Sequential), counting(23));
  EXPECT_EQ(share(job, 1, SampleTail::Pad, SampleOrder::Sequential), (Samples{1, 5, 9, 13, 17, 21}));
  EXPECT_EQ(share(job, 3, SampleTail::Pad, SampleOrder::Sequential), (Samples{3, 7, 11, 15, 19, 0}));
}

TEST(Sampler, EpochsAndSeedsDifferAndRepeat) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const SamplerOptions options{.size = 50, .seed = seed};
    Sampler sampler(options);
    const Samples first = sampler.next_epoch(), second = sampler.next_epoch();
    EXPECT_NE(first, second);
    EXPECT_EQ(sampler.epoch(), 2u);
    EXPECT_EQ(first, Sampler(options).indices(0));
    EXPECT_EQ(second, Sampler(options).indices(1));
    EXPECT_NE(first, Sampler({.size = 50, .seed = seed + 1}).indices(0));
    EXPECT_NE(second, Sampler({.size = 50, .seed = seed + 1}).indices(0));  // seed + epoch is the same.

    Sampler resumed(options);
    resumed.resume_at(1);
    EXPECT_EQ(resumed.next_epoch(), second);
  }
}

/// So that a run resumed with another build or on another machine reads what it would have read.
TEST(Sampler, TheOrderIsTheSameInEveryBuild) {
  EXPECT_EQ(Sampler({.size = 10, .seed = 1}).indices(0), (Samples{5, 0, 8, 7, 3, 1, 9, 6, 4, 2}));
  EXPECT_EQ(Sampler({.size = 10, .seed = 1}).indices(1), (Samples{6, 2, 8, 7, 4, 5, 9, 3, 0, 1}));
}

TEST(Sampler, AllOrdersAreEquallyLikely) {
  constexpr std::uint64_t kDraws = 24000;
  std::map<Samples, double> seen;
  const Sampler sampler({.size = 4, .seed = 7});
  for (std::uint64_t epoch = 0; epoch < kDraws; ++epoch) seen[sampler.indices(epoch)] += 1;
  ASSERT_EQ(seen.size(), 24u);
  double chi_square = 0;
  for (const auto& [order, count] : seen) {
    const double expected = kDraws / 24.0;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  // 23 degrees of freedom: between these lie 99.8 % of all fair shuffles.
  EXPECT_GT(chi_square, 7.5);
  EXPECT_LT(chi_square, 49.7);
}

void expect_invalid(const SamplerOptions& options, const std::vector<std::string>& said) {
  try {
    Sampler sampler(options);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::InvalidArgument);
    for (const std::string& text : said) EXPECT_NE(e.message().find(text), std::string::npos) << e.message();
  }
}

TEST(Sampler, RefusesWhatCannotBeShared) {
  expect_invalid({.size = 0}, {"size 0"});
  expect_invalid({.size = 3, .world_size = 4}, {"4 workers", "3 samples", "at most 3"});
  expect_invalid({.size = 9, .rank = 4, .world_size = 4}, {"rank 4", "size is 4"});
  expect_invalid({.size = 9, .rank = -1, .world_size = 4}, {"rank -1"});
  expect_invalid({.size = 9, .rank = 0, .world_size = 0}, {"size is 0"});
  expect_invalid({.size = 9, .order = static_cast<SampleOrder>(7)}, {"order is 7"});
  expect_invalid({.size = 9, .tail = static_cast<SampleTail>(-1)}, {"tail is -1"});
}

// What was read before, by any number of ranks, and the rest, read by any other, are the epoch.
TEST(Sampler, TheRestOfAnEpochIsSharedOutAmongAnyNumberOfRanks) {
  for (const SampleTail tail : {SampleTail::Exact, SampleTail::Pad, SampleTail::Drop}) {
    for (const std::uint64_t done : {0u, 1u, 13u, 29u, 30u}) {
      for (const int world : {1, 2, 3, 7}) {
        std::multiset<std::uint64_t> read;
        const Sampler whole({.size = 31, .rank = 0, .world_size = 1, .seed = 3});
        const auto order = whole.indices(4);
        read.insert(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(done));
        std::set<std::size_t> counts;
        for (int rank = 0; rank < world; ++rank) {
          Sampler sampler({.size = 31, .rank = rank, .world_size = world, .seed = 3, .tail = tail});
          sampler.resume_at(4, done);
          const auto share = sampler.next_epoch();
          counts.insert(share.size());
          read.insert(share.begin(), share.end());
          EXPECT_EQ(sampler.epoch(), 5u);
          EXPECT_EQ(sampler.next_epoch().size(), sampler.samples_per_epoch()) << "the epoch after it is whole";
        }
        const std::size_t rest = 31 - done, ranks = static_cast<std::size_t>(world);
        std::size_t total = 31;
        if (tail == SampleTail::Pad) total = done + (rest + ranks - 1) / ranks * ranks;
        if (tail == SampleTail::Drop) total = done + rest / ranks * ranks;
        EXPECT_EQ(read.size(), total);
        EXPECT_TRUE(tail == SampleTail::Exact || counts.size() == 1);
        if (tail != SampleTail::Drop) {
          for (std::uint64_t sample = 0; sample < 31; ++sample) EXPECT_TRUE(read.contains(sample));
        }
      }
    }
  }
}

TEST(Sampler, AnEpochThatIsDoneIsFollowedByTheNext) {
  Sampler sampler({.size = 10, .rank = 0, .world_size = 3});
  sampler.resume_at(2, 12);  // padded
  EXPECT_EQ(sampler.epoch(), 3u);
  EXPECT_EQ(sampler.done(), 0u);
}

}  // namespace
}  // namespace paceline
