// Every wait of the shared-memory engine, and each way in which it can end badly.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <thread>

#include "tests/support/shm_world.h"

namespace paceline {
namespace {

using test::ShmWorld;

constexpr std::size_t kMany = 100'000;  // floats: too many for one shot, several chunks

/// Two ranks, of which rank 1 will wait for rank 0 in a certain way.
struct Wait {
  const char* name;
  /// Called with both engines; after it, rank 1 will block in `block`.
  std::function<void(const ShmWorld&, Buffer (&)[2])> prepare;
  std::function<void(ShmEngine&, Buffer&)> block;
};

const Wait kWaits[] = {
    {"Arrival", [](const ShmWorld&, Buffer (&)[2]) {},
     [](ShmEngine& engine, Buffer& buffer) { engine.wait(test::start(engine, test::sum_of(buffer.data(), 1))); }},
    {"Finish",  // rank 0 has come, but does not do its slice
     [](const ShmWorld& world, Buffer (&buffers)[2]) {
       test::start(world.engine(0), test::sum_of(buffers[0].data(), kMany, Algorithm::Slices));
     },
     [](ShmEngine& engine, Buffer& buffer) {
       engine.wait(test::start(engine, test::sum_of(buffer.data(), kMany, Algorithm::Slices)));
     }},
    {"ChunkQueue",  // rank 0 has taken a chunk and does not give it back
     [](const ShmWorld& world, Buffer (&buffers)[2]) {
       const auto number = test::start(world.engine(0), test::sum_of(buffers[0].data(), kMany, Algorithm::ChunkQueue));
       const ShmGroup group = world.group(0);
       const ShmView view(group);
       ASSERT_TRUE(ChunkQueue(view, number, 2).take_own());
     },
     [](ShmEngine& engine, Buffer& buffer) {
       engine.wait(test::start(engine, test::sum_of(buffer.data(), kMany, Algorithm::ChunkQueue)));
     }},
    {"SlotReuse",  // rank 0 has come to 64 operations and looked at none of them since
     [](const ShmWorld& world, Buffer (&buffers)[2]) {
       for (std::uint64_t i = 0; i < RankControl::kOutstanding; ++i) {
         test::start(world.engine(0), test::sum_of(buffers[0].data(), 1));
       }
       for (std::uint64_t i = 0; i < RankControl::kOutstanding; ++i) {
         world.engine(1).wait(test::start(world.engine(1), test::sum_of(buffers[1].data(), 1)));
       }
     },
     [](ShmEngine& engine, Buffer& buffer) { test::start(engine, test::sum_of(buffer.data(), 1)); }},
    {"ManyOutstanding",  // rank 1 has started 64 operations to which rank 0 did not come
     [](const ShmWorld& world, Buffer (&buffers)[2]) {
       for (std::uint64_t i = 0; i < RankControl::kOutstanding; ++i) {
         test::start(world.engine(1), test::sum_of(buffers[1].data(), 1));
       }
     },
     [](ShmEngine& engine, Buffer& buffer) { test::start(engine, test::sum_of(buffer.data(), 1)); }},
};

class ShmWaits : public testing::TestWithParam<Wait> {
 protected:
  /// Lets rank 1 wait, calls `ending`, if any, once it sleeps, and returns what it then throws.
  std::optional<Error> thrown(Nanoseconds timeout, const std::function<void(ShmWorld&)>& ending) {
    ShmWorld world(2, timeout);
    Buffer buffers[] = {world.engine(0).allocate(kMany * sizeof(float)),
                        world.engine(1).allocate(kMany * sizeof(float))};
    GetParam().prepare(world, buffers);
    std::optional<Error> error;
    std::thread rank_1([&] {
      try {
        GetParam().block(world.engine(1), buffers[1]);
      } catch (const Error& caught) {
        error = caught;
      }
    });
    if (ending) {
      world.until_asleep(1);
      ending(world);
    }
    rank_1.join();
    if (error) {
      EXPECT_THROW(test::start(world.engine(1), test::sum_of(buffers[1].data(), 1)), Error) << "lives on";
      EXPECT_THROW(world.engine(1).allocate(1), Error);
    }
    return error;
  }
};

TEST_P(ShmWaits, EndWithAnAbortFromAnotherThread) {
  for (const int by : {0, 1}) {
    const auto error = thrown(std::chrono::seconds(60), [&](ShmWorld& world) {
      world.engine(by).abort({ErrorCode::Aborted, "the user pressed stop", by, by});
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::Aborted);
    EXPECT_EQ(error->message(), "the user pressed stop");
  }
}

TEST_P(ShmWaits, EndWhenTheOtherRankEndsItsCommunicator) {
  const auto error = thrown(std::chrono::seconds(60), [](ShmWorld& world) { world.end(0); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::PeerLost) << error->what();
  EXPECT_EQ(error->peer(), 0);
}

TEST_P(ShmWaits, EndAtTheDeadlineNamingTheLateRank) {
  const auto error = thrown(std::chrono::milliseconds(100), nullptr);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Timeout) << error->what();
  EXPECT_EQ(error->peer(), 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ShmWaits, testing::ValuesIn(kWaits),
                         [](const auto& wait) { return std::string(wait.param.name); });

// What the first to fail writes is what all throw, also those that find another failure in the same moment.
TEST(ShmFailure, ManyAtOnceAreOneCause) {
  for (int round = 0; round < 200; ++round) {
    constexpr int kRanks = 4;
    ShmWorld world(kRanks);
    std::vector<std::string> heard(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        ShmEngine& engine = world.engine(rank);
        engine.abort({ErrorCode::Aborted, "cause " + std::to_string(rank), rank, rank});
        try {
          engine.check();
          heard[static_cast<std::size_t>(rank)] = "nothing";
        } catch (const Error& error) {
          heard[static_cast<std::size_t>(rank)] = error.message();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& cause : heard) {
      ASSERT_EQ(cause, heard[0]);
      ASSERT_TRUE(cause.starts_with("cause")) << cause;
    }
  }
}

}  // namespace
}  // namespace paceline
