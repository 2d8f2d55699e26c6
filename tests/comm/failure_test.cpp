// Ranks that disagree, end, or lose each other: one cause, on all ranks, and nothing combined.
#include <gtest/gtest.h>

#include <latch>
#include <map>
#include <vector>

#include "tests/support/world.h"

namespace paceline {
namespace {

struct Outcome {
  Fault fault{};
  std::string message;
  Cause cause = Cause::First;
};

/// Runs `body` and returns what each rank threw.
std::vector<Outcome> outcomes(int n, ThreadEngine engine, const std::function<void(const Comm&)>& body,
                              std::shared_ptr<MessageFaults> faults = nullptr,
                              Nanoseconds timeout = std::chrono::seconds(60)) {
  std::vector<Outcome> result(static_cast<std::size_t>(n));
  try {
    test::on_ranks(
        n, engine,
        [&](const Comm& comm) {
          try {
            body(comm);
          } catch (const Error& error) {
            result[static_cast<std::size_t>(comm.rank())] = {error.fault(), error.message(), error.cause()};
            throw;
          }
        },
        std::move(faults), timeout);
  } catch (const std::exception&) {
  }
  return result;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class Failures : public testing::TestWithParam<ThreadEngine> {};

/// A call of rank 2, where the others call all_reduce on 300 floats.
struct Deviation {
  const char* name;
  std::function<void(const Comm&, std::span<float>)> call;
  const char* described;
};

TEST_P(Failures, DifferentCallsAreAMismatchNamingBothBeforeAnythingIsCombined) {
  const std::vector<Deviation> deviations{
      {"operation", [](const Comm& c, std::span<float>) { c.barrier(); }, "rank 2 calls barrier #1"},
      {"operation", [](const Comm& c, std::span<float> d) { c.broadcast<float>(d); }, "rank 2 calls broadcast #1"},
      {"count", [](const Comm& c, std::span<float> d) { c.all_reduce<float>(d.first(299)); }, "(float32 x 299, sum)"},
      {"count 0", [](const Comm& c, std::span<float> d) { c.all_reduce<float>(d.first(0)); }, "(float32 x 0, sum)"},
      {"reduction", [](const Comm& c, std::span<float> d) { c.all_reduce<float>(d, ReduceOp::Max); }, "300, max)"},
      {"type",
       [](const Comm& c, std::span<float> d) {
         c.all_reduce<std::int32_t>({reinterpret_cast<std::int32_t*>(d.data()), d.size()});
       },
       "(int32 x 300, sum)"},
  };
  for (const Deviation& deviation : deviations) {
    const auto all = outcomes(4, GetParam(), [&](const Comm& comm) {
      std::vector<float> data(300, static_cast<float>(comm.rank() + 1));
      const Buffer buffer = comm.allocate(data.size() * sizeof(float));
      std::span<float> used(reinterpret_cast<float*>(buffer.data()), data.size());
      std::copy(data.begin(), data.end(), used.begin());
      try {
        if (comm.rank() == 2) deviation.call(comm, used);
        else comm.all_reduce<float>(used);
        ADD_FAILURE() << deviation.name << ": rank " << comm.rank() << " noticed nothing";
      } catch (const Error&) {
        for (const float x : used) EXPECT_EQ(x, static_cast<float>(comm.rank() + 1)) << "data was combined";
        EXPECT_THROW(comm.barrier(), Error) << "a dead communicator lives on";
        throw;
      }
    });
    for (const Outcome& outcome : all) {
      EXPECT_EQ(outcome.fault, Fault::CallsDiffer) << deviation.name << ": " << outcome.message;
      EXPECT_TRUE(contains(outcome.message, "rank 0 calls all_reduce #1 (float32 x 300, sum)")) << outcome.message;
      EXPECT_TRUE(contains(outcome.message, deviation.described)) << outcome.message;
    }
  }
}

TEST_P(Failures, DifferentRootsAndLongCountsAreAMismatch) {
  auto all = outcomes(2, GetParam(), [](const Comm& comm) {
    std::vector<float> data(10);
    comm.broadcast<float>(data, comm.rank());
  });
  for (const Outcome& o : all) EXPECT_TRUE(o.fault == Fault::CallsDiffer && contains(o.message, "root 1")) << o.message;
  // More than one piece on both ranks, and the same first piece.
  all = outcomes(2, GetParam(), [](const Comm& comm) {
    std::vector<float> data(1'000'000 + static_cast<std::size_t>(comm.rank()));
    comm.all_reduce<float>(data);
  });
  for (const Outcome& o : all)
    EXPECT_TRUE(o.fault == Fault::CallsDiffer && contains(o.message, "1000001")) << o.message;
}

TEST_P(Failures, ARankThatGivesUpEndsTheWaitOfTheOthersWithItsReason) {
  const auto all = outcomes(4, GetParam(), [](const Comm& comm) {
    if (comm.rank() == 1) throw Error(ErrorCode::System, "no space left", 1);
    comm.barrier();
  });
  for (const int rank : {0, 2, 3}) {
    EXPECT_EQ(all[rank].fault, Fault::GaveUp);
    EXPECT_TRUE(contains(all[rank].message, "no space left")) << all[rank].message;
  }
}

TEST_P(Failures, OnlyTheRankThatGivesUpIsTheCause) {
  const auto all = outcomes(3, GetParam(), [](const Comm& comm) {
    comm.barrier();
    if (comm.rank() == 2) comm.fail({ErrorCode::Corrupt, "a page is torn", 2, 2});
    comm.barrier();
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(all[rank].cause, rank == 2 ? Cause::First : Cause::Consequence) << rank << all[rank].message;
    EXPECT_EQ(all[rank].fault, Fault::Damaged) << rank;
  }
}

TEST_P(Failures, OfAFailureThatAllSeeTheRankThatItIsAboutIsTheCause) {
  const auto all = outcomes(3, GetParam(), [](const Comm& comm) {
    comm.barrier();
    comm.fail({Fault::NotFinite, "rank 1's gradient held NaN", comm.rank(), 1});
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(all[rank].cause, rank == 1 ? Cause::First : Cause::Consequence) << rank;
    EXPECT_EQ(all[rank].fault, Fault::NotFinite) << rank;
  }
}

TEST_P(Failures, ARankThatHeardACauseInOneCommunicatorPassesItOnInAnother) {
  const auto all = outcomes(3, GetParam(), [](const Comm& comm) {
    const Comm pair = comm.split(comm.rank() == 0 ? 0 : 1), others = comm.split(comm.rank() == 2 ? 0 : 1);
    if (comm.rank() != 2) others.barrier();
    if (comm.rank() != 0) pair.barrier();
    if (comm.rank() == 2) pair.fail({ErrorCode::Corrupt, "a page is torn", pair.rank(), pair.rank()});
    if (comm.rank() == 1) pair.barrier();
    others.barrier();  // rank 0 waits for rank 1, which hears of rank 2
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(all[rank].cause, rank == 2 ? Cause::First : Cause::Consequence) << rank;
    EXPECT_EQ(all[rank].fault, Fault::Damaged) << rank << all[rank].message;
  }
}

TEST_P(Failures, ARankThatGivesUpForAnotherReasonThanItsFailureSaysThat) {
  const auto all = outcomes(2, GetParam(), [](const Comm& comm) {
    const Comm other = comm.duplicate();
    comm.barrier();
    if (comm.rank() == 1) {
      EXPECT_THROW(other.fail({ErrorCode::Corrupt, "a page is torn", 1, 1}), Error);
      throw std::runtime_error("the disk is on fire");
    }
    comm.barrier();
  });
  EXPECT_EQ(all[0].fault, Fault::GaveUp);
  EXPECT_TRUE(contains(all[0].message, "rank 1 gave up: the disk is on fire")) << all[0].message;
}

TEST_P(Failures, ARankThatEndsEarlyIsNamed) {
  const auto all = outcomes(3, GetParam(), [](const Comm& comm) {
    comm.barrier();
    if (comm.rank() != 2) comm.barrier();
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(all[rank].fault, Fault::PeerLeft);
    EXPECT_TRUE(contains(all[rank].message, "rank 2")) << all[rank].message;
  }
}

// The rank that is late stays until the others have given up.
TEST_P(Failures, ARankThatDoesNotComeIsATimeoutNamingIt) {
  std::latch given_up(2);
  const auto all = outcomes(
      3, GetParam(),
      [&](const Comm& comm) {
        if (comm.rank() == 1) return given_up.wait();
        try {
          comm.barrier();
        } catch (const Error&) {
          given_up.count_down();
          throw;
        }
      },
      nullptr, std::chrono::milliseconds(200));
  EXPECT_EQ(all[0].fault, Fault::WaitedTooLong) << all[0].message;
  EXPECT_EQ(all[2].fault, Fault::WaitedTooLong) << all[2].message;
  EXPECT_TRUE(contains(all[0].message, "rank 1")) << all[0].message;
}

TEST_P(Failures, AbortFromAnotherThreadEndsAWait) {
  const auto all = outcomes(2, GetParam(), [](const Comm& comm) {
    if (comm.rank() == 1) {
      std::thread other([&] { comm.abort("the user pressed stop"); });
      other.join();
    }
    comm.barrier();
  });
  for (const Outcome& o : all) EXPECT_TRUE(o.fault == Fault::GaveUp && contains(o.message, "pressed stop"));
}

TEST_P(Failures, WrongArgumentsAreRefusedAndTheCommLivesOn) {
  test::on_ranks(2, GetParam(), [](const Comm& comm) {
    std::vector<float> three(3), five(5);
    const auto refused = [](const std::function<void()>& call) {
      try {
        call();
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.fault(), Fault::BadArgument);
      }
    };
    refused([&] { comm.broadcast<float>(three, 2); });
    refused([&] { comm.broadcast<float>(three, -1); });
    refused([&] { comm.reduce_scatter<float>(five, three); });
    refused([&] { comm.all_gather<float>(three, five); });
    const auto odd = std::as_writable_bytes(std::span(three)).first(5);
    refused([&] { comm.all_reduce(Dtype::Float32, odd, odd, ReduceOp::Sum); });
    EXPECT_EQ(comm.sum(1), 2);
  });
}

INSTANTIATE_TEST_SUITE_P(Engines, Failures,
                         testing::Values(ThreadEngine::SharedMemory, ThreadEngine::Messages, ThreadEngine::Tcp,
                                         ThreadEngine::Hosts),
                         [](const auto& engine) { return test::engine_label(engine.param); });

TEST(MessageFaults, ADroppedMessageIsATimeoutACutOneALostPeerADelayedOneHarmless) {
  const auto when = [](MessageFate fate) {
    return std::make_shared<MessageFaults>([fate](int sender, int receiver, std::size_t nth) {
      return sender == 1 && receiver == 0 && nth >= 1 ? fate : MessageFate{};
    });
  };
  const auto body = [](const Comm& comm) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(comm.sum(1), 3);
  };
  auto all = outcomes(3, ThreadEngine::Messages, body, when({.dropped = true}), std::chrono::milliseconds(200));
  for (const Outcome& o : all) EXPECT_EQ(o.fault, Fault::WaitedTooLong) << o.message;  // who is first to tire is chance
  all = outcomes(3, ThreadEngine::Messages, body, when({.cut = true}));
  for (const Outcome& o : all) EXPECT_EQ(o.fault, Fault::ConnectionLost) << o.message;
  all = outcomes(3, ThreadEngine::Messages, body, when({.delay = std::chrono::milliseconds(5)}));
  for (const Outcome& o : all) EXPECT_EQ(o.message, "");
}

TEST(RunRanks, ThrowsWhatTheFirstRankThrew) {
  try {
    run_ranks(3, [](Comm comm) {
      if (comm.rank() == 1) throw std::out_of_range("mine");
      comm.barrier();
    });
    FAIL();
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "mine");
  }
  EXPECT_THROW(run_ranks(0, [](Comm) {}), Error);
}

TEST(RunRanks, ThrowsWhatIsNoStdExceptionToo) {
  EXPECT_THROW(run_ranks(2,
                         [](Comm comm) {
                           if (comm.rank() == 1) throw 42;
                           comm.barrier();
                         }),
               int);
}

TEST_P(Failures, AbortReachesTheCommunicatorsMadeFromThisOne) {
  const auto all = outcomes(3, GetParam(), [](const Comm& comm) {
    const Comm copy = comm.duplicate();
    if (comm.rank() == 1) throw Error(ErrorCode::System, "no space left", 1);
    copy.barrier();
  });
  for (const int rank : {0, 2}) EXPECT_TRUE(contains(all[rank].message, "no space left")) << all[rank].message;
}

TEST_P(Failures, ARankThatDropsACommunicatorInACaughtExceptionDoesNotHoldUpTheOthers) {
  const auto all = outcomes(2, GetParam(), [](const Comm& comm) {
    try {
      const Comm copy = comm.duplicate();
      if (comm.rank() == 1) throw 42;
      EXPECT_THROW(copy.barrier(), Error);
    } catch (int) {
    }
    EXPECT_EQ(comm.sum(1), 2);
  });
  for (const Outcome& o : all) EXPECT_EQ(o.message, "");
}

TEST(SharedMemory, AFailedAllocationLeavesTheCommAlive) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    try {
      (void)comm.allocate(std::size_t{1} << 45);
      ADD_FAILURE() << "32 TiB";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::SystemRefused) << error.message();
    }
    EXPECT_EQ(comm.allocate(100).bytes(), 100u);
    EXPECT_EQ(comm.sum(1), 2);
  });
}

TEST(SharedMemory, CommunicatorsThatEndGiveBackTheirMemory) {
  test::on_ranks(4, ThreadEngine::SharedMemory, [](const Comm& comm) {
    for (int i = 0; i < 2000; ++i) comm.duplicate().barrier();  // address space for a few hundred
  });
}

TEST(FromEnv, RefusesAnEnvironmentThatContradictsItself) {
  const auto refused = [](std::map<std::string, std::string> environment, const std::string& part) {
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    try {
      (void)Comm::from_env();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::BadArgument);
      EXPECT_TRUE(contains(error.message(), part)) << error.message();
    }
    for (const auto& [name, value] : environment) unsetenv(name.c_str());
  };
  refused({{"WORLD_SIZE", "2"}}, "RANK=(not set)");
  refused({{"WORLD_SIZE", "2"}, {"RANK", "0"}}, "paceline run -n 2");
  refused({{"WORLD_SIZE", "two"}, {"RANK", "0"}}, "WORLD_SIZE=two");
  refused({{"WORLD_SIZE", "0"}, {"RANK", "0"}}, "at least 1");
  EXPECT_EQ(Comm::from_env().world_size(), 1);
}

}  // namespace
}  // namespace paceline
