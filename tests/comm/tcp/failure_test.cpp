// What can go wrong on a network between ranks, and with strangers who knock.
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/comm/tcp/engine.h"
#include "paceline/comm/tcp/frame.h"
#include "paceline/net/handshake.h"
#include "paceline/store/store.h"
#include "tests/support/rank_address.h"
#include "tests/support/tcp_relay.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using test::address_of_rank_0;
using test::Harm;
using test::Mischief;

struct Outcome {
  std::optional<Fault> fault = {};
  std::string message = {};
};

/// What `make` gives, once all have come this far; without those whose `make` throws.
Comm join(const std::function<Comm()>& make, std::barrier<>& met) {
  try {
    Comm comm = make();
    met.arrive_and_wait();
    return comm;
  } catch (...) {
    met.arrive_and_drop();
    throw;
  }
}

/// Runs `body` on threads that meet in `store` over TCP, once all have met: who has not hears of a failure in other
/// words. What each of them threw.
std::vector<Outcome> run_over_tcp(int n, const std::shared_ptr<Store>& store, const TcpOptions& tcp,
                                  Nanoseconds timeout, const std::function<void(const Comm&)>& body) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  std::barrier met(n);
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const Comm comm = join([&] { return Comm::over_tcp(store, "world", rank, n, tcp, {.timeout = timeout}); }, met);
        body(comm);
      } catch (const Error& error) {
        outcomes[static_cast<std::size_t>(rank)] = {error.fault(), error.message()};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

constexpr std::size_t kFloats = 50'000;

/// Small and large all-reduces, whose sums are looked at.
void reduce_and_look(const Comm& comm) {
  const auto n = static_cast<float>(comm.world_size());
  for (int round = 0; round < 4; ++round) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{700}, kFloats}) {
      std::vector<float> data(count, static_cast<float>(comm.rank() + round));
      comm.all_reduce<float>(data);
      for (const float x : data) {
        if (x != n * (n - 1) / 2 + n * static_cast<float>(round)) throw std::logic_error("a wrong sum");
      }
    }
  }
  comm.barrier();  // whatever came before is needed
}

// What one direction carries in reduce_and_look() between two ranks, behind the handshake.
constexpr std::size_t kHandshakeToAcceptor = Handshake::kProofBytes;
constexpr std::size_t kHandshakeToCaller = Handshake::kChallengeBytes + Handshake::kAnswerBytes;
// At least; slices are cut on lines.
constexpr std::size_t carried(std::size_t n) {
  return 4 * (3 * sizeof(FrameHeader) + 4 * 701 + 2 * sizeof(FrameHeader) + 2 * 4 * (kFloats / n - 16 * n));
}

Mischief random_mischief(Harm harm, std::mt19937_64& random, std::size_t n = 2) {
  Mischief mischief{.harm = harm, .to_acceptor = random() % 2 == 0};
  // Half of them among the small frames at the beginning.
  const std::size_t within = random() % 2 == 0 ? 3 * sizeof(FrameHeader) + 2804 : carried(n);
  mischief.byte = (mischief.to_acceptor ? kHandshakeToAcceptor : kHandshakeToCaller) + random() % within;
  mischief.bit = static_cast<unsigned>(random() % 8);
  return mischief;
}

std::string describe(const Mischief& mischief, std::uint64_t seed) {
  return fmt::format("{} at byte {} bit {} to the {}, PACELINE_TEST_SEED={}", to_string(mischief.harm), mischief.byte,
                     mischief.bit, mischief.to_acceptor ? "acceptor" : "caller", seed);
}

/// How many seeded cases: some in each run, more when asked for.
int cases(int usual) {
  const char* asked = std::getenv("PACELINE_TEST_CASES");
  return asked != nullptr ? std::atoi(asked) : usual;
}

TEST(Tcp, EveryFlippedBitIsCorruptOnAllRanksAndNamesThePeer) {
  const std::uint64_t seed = test::seed();
  std::mt19937_64 random(seed);
  for (int i = 0; i < cases(150); ++i) {
    const Mischief mischief = random_mischief(Harm::Flip, random);
    SCOPED_TRACE(describe(mischief, seed));
    const auto outcomes = run_over_tcp(2, std::make_shared<test::RelayedStore>(0, mischief), {}, 60s, reduce_and_look);
    // Rank 1 calls rank 0.
    const std::string from = mischief.to_acceptor ? "what rank 1 sent to rank 0" : "what rank 0 sent to rank 1";
    for (const Outcome& outcome : outcomes) {
      ASSERT_EQ(outcome.fault, Fault::Damaged) << outcome.message;
      EXPECT_TRUE(contains(outcome.message, from)) << outcome.message;
    }
  }
}

TEST(Tcp, AByteThatComesTwiceIsCorrupt) {
  const std::uint64_t seed = test::seed();
  std::mt19937_64 random(seed);
  for (int i = 0; i < cases(50); ++i) {
    const Mischief mischief = random_mischief(Harm::Duplicate, random);
    SCOPED_TRACE(describe(mischief, seed));
    const auto outcomes = run_over_tcp(2, std::make_shared<test::RelayedStore>(0, mischief), {}, 60s, reduce_and_look);
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.fault, Fault::Damaged) << outcome.message;
  }
}

TEST(Tcp, ACutConnectionIsALostPeerOnAllRanks) {
  const std::uint64_t seed = test::seed();
  std::mt19937_64 random(seed);
  for (int i = 0; i < cases(50); ++i) {
    const Mischief mischief = random_mischief(Harm::Cut, random, 3);
    SCOPED_TRACE(describe(mischief, seed));
    const auto outcomes = run_over_tcp(3, std::make_shared<test::RelayedStore>(0, mischief), {}, 60s, reduce_and_look);
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.fault, Fault::ConnectionLost) << outcome.message;
      EXPECT_EQ(outcome.message, outcomes[0].message);
    }
    EXPECT_TRUE(contains(outcomes[0].message, "connection broke")) << outcomes[0].message;
  }
}

TEST(Tcp, ADelayHarmsNobody) {
  const std::uint64_t seed = test::seed();
  std::mt19937_64 random(seed);
  for (int i = 0; i < cases(20); ++i) {
    Mischief mischief = random_mischief(Harm::Delay, random);
    mischief.delay = 20ms;
    SCOPED_TRACE(describe(mischief, seed));
    for (const Outcome& outcome :
         run_over_tcp(2, std::make_shared<test::RelayedStore>(0, mischief), {}, 60s, reduce_and_look)) {
      EXPECT_FALSE(outcome.fault) << outcome.message;
    }
  }
}

TEST(Tcp, APeerThatFallsSilentIsATimeoutNamingIt) {
  const std::uint64_t seed = test::seed();
  std::mt19937_64 random(seed);
  for (int i = 0; i < cases(4); ++i) {
    const Mischief mischief = random_mischief(Harm::Swallow, random);
    SCOPED_TRACE(describe(mischief, seed));
    const auto outcomes = run_over_tcp(2, std::make_shared<test::RelayedStore>(0, mischief), {}, 1s, reduce_and_look);
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.fault, Fault::WaitedTooLong) << outcome.message;
      EXPECT_TRUE(contains(outcome.message, "waited")) << outcome.message;
    }
    EXPECT_EQ(outcomes[0].message, outcomes[1].message);
  }
}

// ---- Joining.

std::shared_ptr<Store> memory_store() { return make_memory_store(); }

TEST(TcpJoin, ListensOnIPv6AndOnAnInterface) {
  for (const char* bind : {"::1", "=lo", "route:localhost"}) {
    for (const Outcome& outcome : run_over_tcp(3, memory_store(), {.bind = bind}, 60s, reduce_and_look)) {
      EXPECT_FALSE(outcome.fault) << bind << ": " << outcome.message;
    }
  }
}

TEST(TcpJoin, BeyondLoopbackASecretIsRequired) {
  for (const char* bind : {"0.0.0.0", "10.1.2.3"}) {
    const auto outcomes = run_over_tcp(1 + 1, memory_store(), {.bind = bind}, 1s, reduce_and_look);
    EXPECT_EQ(outcomes[0].fault, Fault::BadArgument) << outcomes[0].message;
    EXPECT_TRUE(contains(outcomes[0].message, "needs a secret")) << outcomes[0].message;
  }
}

TEST(TcpJoin, RanksWithDifferentSecretsDoNotMeet) {
  const auto store = memory_store();
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        (void)Comm::over_tcp(store, "world", rank, 2, {.secret = Secret::random()}, {.timeout = 3s});
      } catch (const Error& error) {
        outcomes[static_cast<std::size_t>(rank)] = {error.fault(), error.message()};
        store->fail(rank, error);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(outcomes[1].fault, Fault::CallsDiffer) << outcomes[1].message;
  EXPECT_TRUE(contains(outcomes[1].message, "Have all workers the same secret?")) << outcomes[1].message;
  EXPECT_TRUE(outcomes[0].fault) << "rank 0 met somebody";
}

TEST(TcpJoin, ASecretOnOneRankOnlyIsAMismatch) {
  const auto store = memory_store();
  std::thread first([&] {
    EXPECT_THROW((void)Comm::over_tcp(store, "world", 0, 2, {.secret = Secret::random()}, {.timeout = 10s}), Error);
  });
  try {
    (void)Comm::over_tcp(store, "world", 1, 2, {}, {.timeout = 10s});
    ADD_FAILURE() << "met";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::CallsDiffer) << error.message();
    store->fail(1, error);
  }
  first.join();
}

TEST(TcpJoin, RanksThatDoNotComeAreNamed) {
  const auto store = memory_store();
  try {
    (void)Comm::over_tcp(store, "world", 0, 3, {}, {.timeout = 100ms});
    FAIL() << "met";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::NotAllJoined);
    EXPECT_TRUE(contains(error.message(), "rank 1, 2 of 3 did not come")) << error.message();
  }
}

// Junk, silence, half a proof, and proofs under other secrets, all while rank 0 waits for rank 1; then rank 1 comes.
TEST(TcpJoin, StrangersAreSentAwayAndDisturbNobody) {
  const std::uint64_t seed = test::seed();
  SCOPED_TRACE(testing::Message() << "PACELINE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const auto store = memory_store();
  Outcome outcome;
  std::thread first([&] {
    try {
      reduce_and_look(Comm::over_tcp(store, "world", 0, 2, {}, {.timeout = 60s}));
    } catch (const Error& error) {
      outcome = {error.fault(), error.message()};
    }
  });
  // Lets rank 0 go on from the store to its listeners; stranger_test.cpp has the time before.
  store->set("tcp/world/address/1", "2 elsewhere 1 127.0.0.1 1");
  const SocketAddress address = address_of_rank_0(*store);
  std::vector<UniqueFd> silent;
  int answers = 0;
  for (int i = 0; i < cases(300); ++i) {
    std::string why;
    UniqueFd socket = connect_to(address, Deadline(10s), why);
    ASSERT_TRUE(socket) << why;
    if (i % 4 == 0) {
      silent.push_back(std::move(socket));
      if (silent.size() > 100) silent.erase(silent.begin());
      continue;
    }
    Handshake::Challenge challenge;
    Handshake stranger(Secret::random());
    // A whole proof's length or more; once, less than that, and then nothing.
    std::vector<std::byte> said(i == 1 ? 5 : i % 4 == 1 ? Handshake::kProofBytes + random() % 2000 : 0);
    for (auto& byte : said) byte = static_cast<std::byte>(random());
    if (i % 4 > 1 && receive_all(socket.get(), challenge, Deadline(10s))) {
      const auto proof =
          stranger.prove({.generation = random(), .caller = 1, .acceptor = 0, .world_size = 2}, challenge);
      ASSERT_TRUE(proof);
      said.assign(proof->begin(), proof->end());
      if (i % 4 == 2) said.pop_back();
    }
    (void)send_all(socket.get(), said, Deadline(10s));
    if (i % 4 == 2) continue;
    // It ends without an answer.
    std::array<std::byte, Handshake::kChallengeBytes + 1> heard;
    if (i % 4 == 3) answers += receive_all(socket.get(), std::span(heard).first(1), Deadline(10s)) ? 1 : 0;
    else EXPECT_FALSE(receive_all(socket.get(), heard, Deadline(10s)));
  }
  EXPECT_EQ(answers, 0);
  reduce_and_look(Comm::over_tcp(store, "world", 1, 2, {}, {.timeout = 60s}));
  first.join();
  EXPECT_FALSE(outcome.fault) << outcome.message;
}

TEST(TcpJoin, NothingListensOnceAllHaveMet) {
  const auto store = memory_store();
  const auto outcomes = run_over_tcp(2, store, {}, 60s, [&](const Comm& comm) {
    comm.barrier();
    std::string why;
    EXPECT_FALSE(connect_to(address_of_rank_0(*store), Deadline(10s), why));
    comm.barrier();
  });
  for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.fault) << outcome.message;
}

// ---- What the kernel knows.

TEST(Tcp, TellsWhatTheKernelKnowsOfAConnection) {
  const auto store = memory_store();
  std::thread other([&] {
    const auto engine = make_tcp_engine(store, "world", 1, 2, {}, 60s);
    std::vector<float> data(kFloats, 2);
    auto* bytes = reinterpret_cast<std::byte*>(data.data());
    engine->run({.kind = Collective::AllReduce, .dtype = Dtype::Float32, .count = kFloats, .in = bytes, .out = bytes},
                Algorithm::Direct);
  });
  const auto engine = make_tcp_engine(store, "world", 0, 2, {}, 60s);
  std::vector<float> data(kFloats, 1);
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  engine->run({.kind = Collective::AllReduce, .dtype = Dtype::Float32, .count = kFloats, .in = bytes, .out = bytes},
              Algorithm::Direct);
  EXPECT_EQ(data.back(), 3);
  const LinkInfo info = engine->links().at(0);
  EXPECT_EQ(info.peer, 1);
  EXPECT_GT(info.bytes_received, kFloats * sizeof(float));
  EXPECT_GT(info.round_trip_s, 0);
  EXPECT_LT(info.round_trip_s, 10);
  EXPECT_TRUE(contains(info.address, "127.0.0.1:")) << info.address;
  other.join();
}

}  // namespace
}  // namespace paceline
