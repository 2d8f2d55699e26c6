#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>

#include "paceline/train/data_loader.h"
#include "paceline/train/seed.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

/// Sample i is the number i.
std::shared_ptr<TensorDataset> numbers(std::int64_t count) {
  const auto all = torch::arange(count);
  return std::make_shared<TensorDataset>(all, all * 10);
}

std::vector<std::int64_t> epoch_of(DataLoader& loader) {
  std::vector<std::int64_t> seen;
  for (auto& batch : loader.epoch()) {
    EXPECT_TRUE(batch.target.equal(batch.data * 10));
    for (std::int64_t i = 0; i < batch.size(); ++i) seen.push_back(batch.data[i].item<std::int64_t>());
  }
  return seen;
}

class LoaderThreads : public testing::TestWithParam<std::size_t> {};

TEST_P(LoaderThreads, RanksReadEachSampleOnceInAnotherOrderEveryEpoch) {
  for (const int n : {1, 2, 3}) {
    std::vector<std::vector<std::vector<std::int64_t>>> seen(3, std::vector<std::vector<std::int64_t>>(n));
    test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      DataLoader loader(numbers(101), comm,
                        {.batch_size = 7, .seed = 5, .tail = SampleTail::Exact, .threads = GetParam()});
      for (auto& epoch : seen) epoch[comm.rank()] = epoch_of(loader);
      EXPECT_EQ(loader.next_epoch(), 3u);
    });
    for (const auto& epoch : seen) {
      std::vector<std::int64_t> all;
      for (const auto& rank : epoch) all.insert(all.end(), rank.begin(), rank.end());
      std::sort(all.begin(), all.end());
      std::vector<std::int64_t> expected(101);
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(all, expected) << "world " << n;
    }
    EXPECT_NE(seen[0][0], seen[1][0]);
    EXPECT_NE(seen[1][0], seen[2][0]);
  }
}

TEST_P(LoaderThreads, RanksWithoutSamplesHaveEpochsWithoutBatches) {
  test::on_ranks(3, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    DataLoader loader(
        numbers(2), comm,
        {.batch_size = 7, .order = SampleOrder::Sequential, .tail = SampleTail::Exact, .threads = GetParam()});
    const std::vector<std::int64_t> expected(comm.rank() < 2 ? 1 : 0, comm.rank());
    EXPECT_EQ(loader.batches(), expected.size());
    for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
      EXPECT_EQ(epoch_of(loader), expected);
      EXPECT_EQ(loader.position(), (DataLoader::Position{epoch + 1, 0}));
    }
  });
}

TEST_P(LoaderThreads, TheOrderDependsOnTheSeedOnly) {
  const auto order = [&](std::uint64_t seed, std::size_t threads) {
    DataLoader loader(numbers(50), Comm::solo(), {.batch_size = 8, .seed = seed, .threads = threads});
    return epoch_of(loader);
  };
  EXPECT_EQ(order(1, GetParam()), order(1, 3));
  EXPECT_NE(order(1, GetParam()), order(2, GetParam()));
}

TEST_P(LoaderThreads, AnEpochLeftEarlyIsFollowedByAWholeOne) {
  DataLoader loader(numbers(100), Comm::solo(), {.batch_size = 3, .prefetch = 9, .threads = GetParam()});
  for (int round = 0; round < 20; ++round) {
    int batches = 0;
    for ([[maybe_unused]] auto& batch : loader.epoch()) {
      if (++batches == round) break;
    }
    auto seen = epoch_of(loader);
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen.size(), 100u);
    ASSERT_TRUE(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
  }
}

struct Broken final : Dataset {
  std::size_t size() const override { return 100; }
  Batch get(std::span<const std::uint64_t> indices) const override {
    if (std::find(indices.begin(), indices.end(), 42) != indices.end())
      throw std::runtime_error("sample 42 is damaged");
    return {torch::zeros({static_cast<std::int64_t>(indices.size())}), torch::zeros({1})};
  }
};

TEST_P(LoaderThreads, AnErrorOfTheDataSetComesOutOfTheLoop) {
  DataLoader loader(std::make_shared<Broken>(), Comm::solo(), {.batch_size = 4, .threads = GetParam()});
  for (int epoch = 0; epoch < 2; ++epoch) {
    try {
      for ([[maybe_unused]] auto& batch : loader.epoch()) {
      }
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "sample 42 is damaged");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, LoaderThreads, testing::Values(0, 1, 3));

TEST(Loader, ReadsAheadNoFurtherThanAsked) {
  struct Counting final : Dataset {
    mutable std::atomic<int> reads{0};
    std::size_t size() const override { return 1000; }
    Batch get(std::span<const std::uint64_t>) const override {
      ++reads;
      return {torch::zeros({1}), torch::zeros({1})};
    }
  };
  const auto dataset = std::make_shared<Counting>();
  DataLoader loader(dataset, Comm::solo(), {.batch_size = 10, .prefetch = 3, .threads = 2});
  int taken = 0;
  for ([[maybe_unused]] auto& batch : loader.epoch()) EXPECT_LE(dataset->reads, ++taken + 3);
  EXPECT_EQ(taken, 100);
}

TEST(Loader, RanksThatWouldShuffleDifferentlyAreAMismatch) {
  std::atomic<int> refused{0};
  EXPECT_THROW(test::on_ranks(3, ThreadEngine::SharedMemory,
                              [&](const Comm& comm) {
                                try {
                                  const auto seed = static_cast<std::uint64_t>(comm.rank() / 2);
                                  DataLoader loader(numbers(50), comm, {.batch_size = 5, .seed = seed});
                                } catch (const Error& error) {
                                  refused += error.code() == ErrorCode::Mismatch &&
                                             error.message().find("rank 2 reads 50 samples in batches of 5, seed 1") !=
                                                 std::string::npos;
                                  throw;
                                }
                              }),
               Error);
  EXPECT_EQ(refused, 3);
}

TEST(Loader, ABatchLargerThanTheDataSetIsAllOfIt) {
  for (const std::size_t size : {std::size_t{6}, std::numeric_limits<std::size_t>::max()}) {
    DataLoader loader(numbers(5), Comm::solo(), {.batch_size = size});
    EXPECT_EQ(loader.batches(), 1u);
    std::int64_t samples = 0;
    for (auto& batch : loader.epoch()) samples += batch.data.size(0);
    EXPECT_EQ(samples, 5);
    EXPECT_EQ(loader.position().epoch, 1u);
  }
}

TEST(Loader, RefusesWhatCannotWork) {
  const auto refused = [](const std::function<void()>& call, const std::string& part) {
    try {
      call();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
    }
  };
  refused([] { DataLoader loader(numbers(5), Comm::solo(), {.batch_size = 0}); }, "batch size");
  refused([] { numbers(0); }, "and some");
  refused([] { TensorDataset(torch::zeros({3}), torch::zeros({4})); }, "same number");
  test::on_ranks(3, ThreadEngine::SharedMemory,
                 [&](const Comm& comm) { refused([&] { DataLoader loader(numbers(2), comm, {}); }, "2"); });
}

}  // namespace
}  // namespace paceline
