// A peer that knows the secret, but sends what no rank sends: each field of what arrives is checked where it arrives,
// and nothing of it is believed. The others get Corrupt, which names it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/comm/host_map.h"
#include "paceline/comm/message/hierarchical.h"
#include "paceline/comm/tcp/frame.h"
#include "paceline/comm/tcp/join_terms.h"
#include "paceline/net/connect_authenticated.h"
#include "paceline/net/tcp_socket.h"
#include "paceline/store/store.h"
#include "paceline/sync/reducer.h"
#include "tests/support/rank_address.h"
#include "tests/support/shm_world.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

/// Rank 1 of 2, as its connection to rank 0 has it.
class Peer {
 public:
  explicit Peer(Store& store) {
    store.set("tcp/world/address/1", "2 host 1 127.0.0.1 1");
    std::istringstream terms(store.get("tcp/world/terms/0", Deadline(60s)));
    std::uint64_t generation = 0;
    std::string segment_bytes, all_reduce, secret, why;
    terms >> generation >> segment_bytes >> all_reduce >> secret;
    stream_ = {.sender = 1, .generation = generation};
    const auto outcome = connect_authenticated(test::address_of_rank_0(store), Secret::from_hex(secret),
                                               {generation, 1, 0, 2}, Deadline(60s), socket_, why);
    EXPECT_EQ(outcome, ConnectOutcome::Met) << why;
  }

  void send(FrameKind kind, const Call& call, std::span<const std::byte> payload) {
    const FrameHeader header = make_frame(stream_, kind, call, payload);
    EXPECT_TRUE(send_all(socket_.get(), std::as_bytes(std::span(&header, 1)), Deadline(60s)));
    EXPECT_TRUE(payload.empty() || send_all(socket_.get(), payload, Deadline(60s)));
  }

 private:
  UniqueFd socket_;
  FrameStream stream_;
};

/// What rank 0 throws in `body`, where rank 1 does `act`.
std::optional<Error> thrown(const std::function<void(const Comm&)>& body, const std::function<void(Peer&)>& act) {
  const auto store = make_memory_store();
  std::optional<Error> error;
  std::thread rank_0([&] {
    try {
      body(Comm::over_tcp(store, "world", 0, 2, {}, {.timeout = 60s}));
    } catch (const Error& caught) {
      error = caught;
    }
  });
  Peer peer(*store);
  act(peer);
  rank_0.join();
  return error;
}

constexpr std::array kData{1.0F, 2.0F, 3.0F};

Operation some_mean(std::span<float> data) {
  return {.kind = Collective::AllReduce,
          .dtype = Dtype::Float32,
          .reduce = ReduceOp::Mean,
          .count = data.size(),
          .in = std::as_bytes(data).data(),
          .out = std::as_writable_bytes(data).data(),
          .label = "mean"};
}

/// The call that rank 0 makes of some_mean(kData).
Call honest() {
  std::array data = kData;
  Call call{.signature = {}, .weight = 1, .reach = data.size(), .message_bytes = sizeof data};
  sign(some_mean(data), 1, call.signature);
  return call;
}

void expect_corrupt(const std::optional<Error>& error, const std::string& part) {
  ASSERT_TRUE(error) << "nothing was thrown";
  EXPECT_EQ(error->fault(), Fault::Damaged) << error->what();
  EXPECT_EQ(error->peer(), 1) << error->what();
  EXPECT_NE(error->message().find(part), std::string::npos) << error->what();
  EXPECT_NE(error->message().find("rank 1"), std::string::npos) << error->what();
}

struct Lie {
  const char* name;
  std::function<void(Call&)> tell;
  const char* part;  // of the message
};

const Lie kLies[] = {
    {"LabelWithoutAnEnd", [](Call& call) { std::memset(call.signature.label, 'x', sizeof call.signature.label); },
     "label"},
    {"LabelWithSomethingBehindIt", [](Call& call) { call.signature.label[10] = 'x'; }, "label"},
    {"WeightNaN", [](Call& call) { call.weight = std::nan(""); }, "a weight of nan"},
    {"WeightBelowZero", [](Call& call) { call.weight = -1; }, "a weight of -1"},
    {"WeightInfinite", [](Call& call) { call.weight = std::numeric_limits<double>::infinity(); }, "a weight of inf"},
    {"ReachNone", [](Call& call) { call.reach = 0; }, "0 of 3 elements"},
    {"ReachTooFar", [](Call& call) { call.reach = 4; }, "4 of 3 elements"},
    {"MessageOfAnotherSize", [](Call& call) { call.message_bytes = 8; }, "8 bytes"},
    {"NumberNone", [](Call& call) { call.signature.number = 0; }, "number"},
    {"CountBeyondMemory", [](Call& call) { call.signature.count = call.reach = std::uint64_t{1} << 62; }, "elements"},
    {"CallCountBeyondMemory", [](Call& call) { call.signature.call_count = UINT64_MAX; }, "elements"},
    {"UnknownKind", [](Call& call) { call.signature.kind = static_cast<Collective>(9); }, "kind"},
    {"UnknownType", [](Call& call) { call.signature.dtype = static_cast<Dtype>(7); }, "type"},
    {"UnknownReduction", [](Call& call) { call.signature.reduce = static_cast<ReduceOp>(4); }, "reduction"},
    {"UnknownAlgorithm", [](Call& call) { call.signature.algorithm = static_cast<Algorithm>(7); }, "algorithm"},
    {"InPlaceNeitherYesNorNo", [](Call& call) { call.signature.in_place = 2; }, "in_place"},
    {"StartedNeitherYesNorNo", [](Call& call) { call.signature.started = 2; }, "started"},
    {"RootBelowZero",
     [](Call& call) {
       call.signature.kind = Collective::Reduce;
       call.signature.root = -1;
     },
     "root"},
    {"PartsWithACount", [](Call& call) { call.signature.parts = 7; }, "parts"},
};

class PeerLies : public testing::TestWithParam<Lie> {};

TEST_P(PeerLies, IsCorrupt) {
  std::array data = kData;
  const auto error = thrown([&](const Comm& comm) { comm.run(some_mean(data)); },
                            [&](Peer& peer) {
                              Call call = honest();
                              GetParam().tell(call);
                              peer.send(FrameKind::Call, call, std::as_bytes(std::span(kData)));
                            });
  expect_corrupt(error, GetParam().part);
  EXPECT_EQ(data, kData) << "something was combined";
}

INSTANTIATE_TEST_SUITE_P(Each, PeerLies, testing::ValuesIn(kLies),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Peer, ThatSpeaksTheTruthIsAddedUp) {
  std::array data{3.0F, 4.0F, 5.0F};
  const auto error = thrown([&](const Comm& comm) { comm.run(some_mean(data)); },
                            [&](Peer& peer) { peer.send(FrameKind::Call, honest(), std::as_bytes(std::span(kData))); });
  EXPECT_FALSE(error) << error->what();
  EXPECT_EQ(data, (std::array{2.0F, 3.0F, 4.0F}));
}

TEST(Peer, WhosePayloadIsNotTheMessageThatItAnnouncesIsCorrupt) {
  std::array data = kData;
  const auto error =
      thrown([&](const Comm& comm) { comm.run(some_mean(data)); },
             [&](Peer& peer) { peer.send(FrameKind::Call, honest(), std::as_bytes(std::span(kData)).first(8)); });
  expect_corrupt(error, "8 bytes");
}

TEST(Peer, WhoseGoodbyeHasAPayloadIsCorrupt) {
  std::array data = kData;
  const auto error = thrown([&](const Comm& comm) { comm.run(some_mean(data)); },
                            [&](Peer& peer) { peer.send(FrameKind::Leave, {}, std::as_bytes(std::span(kData))); });
  expect_corrupt(error, "12 bytes");
}

TEST(Peer, WhoseDataAreOfAnotherOperationIsCorrupt) {
  std::vector<float> data(50'000, 1);
  const auto error = thrown(
      [&](const Comm& comm) { comm.all_reduce<float>(data); },
      [&](Peer& peer) {
        Call call{.signature = {}, .weight = 1, .reach = data.size(), .message_bytes = data.size() * sizeof(float)};
        sign({.kind = Collective::AllReduce, .dtype = Dtype::Float32, .count = data.size()}, 1, call.signature);
        peer.send(FrameKind::Call, call, {});
        call.signature.number = 2;
        peer.send(FrameKind::Segment, call, std::vector<std::byte>(100'000));
      });
  expect_corrupt(error, "another operation");
}

// ---- Through the store, where ranks meet.

struct Words {
  const char* name;
  const char* key;
  const char* value;
};

const Words kWords[] = {
    {"NoAddress", "tcp/world/address/1", "2 host 1"},
    {"NoPort", "tcp/world/address/1", "2 host 1 127.0.0.1"},
    {"PortTooLarge", "tcp/world/address/1", "2 host 1 127.0.0.1 65536"},
    {"PortNone", "tcp/world/address/1", "2 host 1 127.0.0.1 0"},
    {"NameForAnAddress", "tcp/world/address/1", "2 host 1 localhost 4711"},
    {"ProcessBelowZero", "tcp/world/address/1", "2 host -1 127.0.0.1 4711"},
};

class PeerWrites : public testing::TestWithParam<Words> {};

TEST_P(PeerWrites, IsCorrupt) {
  const auto store = make_memory_store();
  store->set(GetParam().key, GetParam().value);
  std::optional<Error> error;
  try {
    (void)Comm::over_tcp(store, "world", 0, 2, {}, {.timeout = 60s});
  } catch (const Error& caught) {
    error = caught;
  }
  expect_corrupt(error, GetParam().value + 2);
}

INSTANTIATE_TEST_SUITE_P(Each, PeerWrites, testing::ValuesIn(kWords),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Terms, AreReadOnlyAsTheyAreWritten) {
  const std::string secret(64, 'a');
  for (const std::string& good : {"7 131072 0 " + secret, std::string("7 4096 5 "), std::string("7 16777216 4")}) {
    EXPECT_TRUE(TcpTerms::from_text(good)) << good;
  }
  for (const std::string& bad :
       {std::string(), std::string("7"), std::string("7 131072"), std::string("7 0 0"), std::string("7 4095 0"),
        std::string("7 131073 0"), std::string("7 16777280 0"), std::string("7 131072 -1"), std::string("7 131072 1"),
        std::string("7 131072 256"), std::string("-7 131072 0"), std::string("7 131072 0 ab"),
        "7 131072 0 " + secret + "a", "7 131072 0 " + std::string(64, 'x'), "7 131072 0 " + secret + " more"}) {
    EXPECT_FALSE(TcpTerms::from_text(bad)) << bad;
  }
}

TEST(Peer, ThatSaysAnImpossibleHostIsCorrupt) {
  const auto store = make_memory_store();
  for (const char* first : {"2 2", "2 -1", "2 first", "2 "}) {
    store->set("host/world/1", "2 nobody");
    store->set("host/world/first/1", first);
    std::optional<Error> error;
    try {
      (void)find_hosts(*store, "world", 0, 2, Deadline(60s));
    } catch (const Error& caught) {
      error = caught;
    }
    expect_corrupt(error, std::string("\"") + (first + 2) + "\"");
  }
}

// Ranks of a host tell each other, over a connection, where their operands lie in the memory that they share.
TEST(Peer, WhoseOperandsLieOutsideOfItsMemoryIsCorrupt) {
  constexpr std::size_t kFloats = 10'000, kBytes = kFloats * sizeof(float);
  const test::ShmWorld here(2);
  HostGroup hosts{{{{0, 1}, {2}}}, std::make_unique<ShmEngine>(here.group(0), "here", 60s)};
  const Buffer own = hosts.memory->allocate(kBytes), theirs = here.engine(1).allocate(kBytes);
  const std::uint64_t good = here.engine(1).offset_of(theirs.data());
  const auto hears = [&](std::uint64_t in, std::uint64_t out) -> std::optional<Error> {
    Hierarchical chain(hosts, 0, 65536);
    chain.begin(test::sum_of(own.data(), kFloats), kFloats, {});
    const std::array said{in, out};
    const auto to = chain.next_incoming(1);
    EXPECT_EQ(to.size(), sizeof said);
    std::memcpy(to.data(), said.data(), sizeof said);
    try {
      chain.arrived(1);
    } catch (const Error& error) {
      return error;
    }
    return std::nullopt;
  };
  EXPECT_FALSE(hears(good, good));
  for (const std::uint64_t bad : {good + 4096, std::uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - kBytes + 1}) {
    expect_corrupt(hears(bad, good), "where there is none");
    expect_corrupt(hears(good, bad), "where there is none");
  }
}

// ---- In the header of a step.

constexpr std::size_t kCount = 10;

/// A rank that does what a Reducer of kParameters parameters does in its first round, but says what it likes.
struct Imitation {
  const Comm& comm;
  const Reducer honest{comm, parameters(), {}};
  HeaderExchange<StepPrologue> prologue{comm};
  HeaderExchange<StepEpilogue> epilogue{comm};

  static std::vector<ParameterInfo> parameters() {
    return {{"a", kCount, Dtype::Float32}, {"b", kCount, Dtype::Float32}};
  }
  void say(const StepPrologue& said) {
    const std::string label = fmt::format("step 0 {:08x}", honest.plan().hash() >> 32);
    prologue.start(said, label.c_str());
    prologue.wait();
  }
  void say(const StepEpilogue& said) {
    const Buffer bucket = comm.allocate(honest.plan().buckets[0].bytes);
    const std::size_t count = bucket.bytes() / sizeof(float);
    Comm::Work work = comm.start({.kind = Collective::AllReduce,
                                  .dtype = Dtype::Float32,
                                  .reduce = ReduceOp::Mean,
                                  .count = count,
                                  .in = bucket.data(),
                                  .out = bucket.data(),
                                  .label = "bucket 0"});
    epilogue.start(said, "step ends");
    work.wait();
    epilogue.wait();
  }
  StepPrologue good() const { return {0, honest.plan().hash(), 1, 1, 0, 0}; }
};

/// What the honest one of two ranks throws in its first round, where `liar` does `act`.
std::optional<Error> thrown_in_step(int liar, const std::function<void(Imitation&)>& act) {
  std::optional<Error> error;
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    if (comm.rank() == liar) {
      Imitation imitation{comm};
      try {
        act(imitation);
        comm.barrier();
      } catch (const Error&) {
      }
      return;
    }
    Reducer reducer(comm, Imitation::parameters(), {});
    const std::vector<float> gradient(kCount, 1);
    try {
      reducer.begin();
      for (const std::size_t parameter : {std::size_t{0}, std::size_t{1}}) {
        reducer.store(parameter, std::as_bytes(std::span(gradient)).data());
      }
      reducer.finish();
    } catch (const Error& caught) {
      error = caught;
    }
  });
  return error;
}

TEST(Peer, WhoseStepBeginsWithWhatNoRankSaysIsCorrupt) {
  const auto said = [](const std::function<void(StepPrologue&)>& lie) {
    return thrown_in_step(1, [&](Imitation& imitation) {
      StepPrologue prologue = imitation.good();
      lie(prologue);
      imitation.say(prologue);
      imitation.say(StepEpilogue{});
    });
  };
  expect_corrupt(said([](StepPrologue& p) { p.weight = std::nan(""); }), "a weight of nan");
  expect_corrupt(said([](StepPrologue& p) { p.weight = -1; }), "a weight of -1");
  expect_corrupt(said([](StepPrologue& p) { p.flags = 8; }), "flags 0x8");
}

TEST(Peer, WhoseStepEndsWithAParameterThatThereIsNotIsCorrupt) {
  const auto said = [](const StepEpilogue& epilogue) {
    return thrown_in_step(1, [&](Imitation& imitation) {
      imitation.say(imitation.good());
      imitation.say(epilogue);
    });
  };
  expect_corrupt(said({.absent = 0, .gradient_hash = 0, .bad_parameter = 3, .state_hash = 0}), "parameter 3 of 2");
  expect_corrupt(said({.absent = 3, .gradient_hash = 0, .bad_parameter = 0, .state_hash = 0}), "parameter 3 of 2");
}

TEST(Peer, WhoseOrderOfParametersIsNoneIsCorrupt) {
  for (const std::vector<std::int64_t>& order :
       std::vector<std::vector<std::int64_t>>{{0, 2}, {0, -1}, {1, 1}, {0, std::int64_t{1} << 60}}) {
    const auto error = thrown_in_step(0, [&](Imitation& imitation) {
      imitation.say(imitation.good());
      imitation.say(StepEpilogue{});
      auto said = order;
      imitation.comm.broadcast<std::int64_t>(said, 0);
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->fault(), Fault::Damaged) << error->what();
    EXPECT_EQ(error->peer(), 0) << error->what();
    EXPECT_NE(error->message().find("an order with parameter"), std::string::npos) << error->what();
  }
}

TEST(Peer, WhoseTextHasAnImpossibleLengthIsCorrupt) {
  for (const std::int64_t length : {std::int64_t{-1}, INT64_MAX}) {
    std::optional<Error> error;
    test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      try {
        if (comm.rank() == 0) {
          (void)comm.gather(std::string("text"));
        } else {
          std::vector<std::int64_t> all(2);
          comm.all_gather<std::int64_t>(std::span(&length, 1), all);
        }
      } catch (const Error& caught) {
        if (comm.rank() == 0) error = caught;
      }
    });
    expect_corrupt(error, "a text of");
  }
}

}  // namespace
}  // namespace paceline
