// The store's promises, for ranks that are threads (memory) and over a StoreServer (Unix socket, TCP), and what a
// server does with clients that are broken or not ours.
#include "paceline/store/store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "paceline/base/error.h"
#include "paceline/base/unique_fd.h"
#include "paceline/net/unix_socket.h"
#include "paceline/store/protocol.h"
#include "paceline/store/server.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

/// Longer than any wait that a loaded machine may need, so that reaching it means a hang.
Deadline patience() { return Deadline(60s); }

/// One store and any number of ranks' ways to it.
struct World {
  virtual ~World() = default;
  virtual std::shared_ptr<Store> open() = 0;
};

struct MemoryWorld final : World {
  std::shared_ptr<Store> store = make_memory_store();
  std::shared_ptr<Store> open() override { return store; }
};

struct ServerWorld final : World {
  StoreServer server;
  std::shared_ptr<Store> open() override { return connect_store(server.address(), patience()); }
};

struct TcpWorld final : World {
  const Secret secret = Secret::random();
  StoreServer server{{.addresses = {SocketAddress("127.0.0.1", 0)}, .secret = secret}};
  std::shared_ptr<Store> open() override { return connect_store(server.tcp_addresses().front(), patience(), secret); }
};

template <class Kind>
struct StoreTest : testing::Test {
  Kind world;
};
using Kinds = testing::Types<MemoryWorld, ServerWorld, TcpWorld>;

struct KindNames {
  template <class Kind>
  static std::string GetName(int) {
    return std::is_same_v<Kind, MemoryWorld> ? "Memory" : std::is_same_v<Kind, ServerWorld> ? "Server" : "Tcp";
  }
};
TYPED_TEST_SUITE(StoreTest, Kinds, KindNames);

template <class Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  throw std::logic_error("the call did not throw");
}

TYPED_TEST(StoreTest, GivesBackTheBytesThatWereSet) {
  const auto writer = this->world.open(), reader = this->world.open();
  std::string bytes(100'000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  writer->set("bytes", bytes);
  writer->set("", "empty key");
  writer->set("empty value", "");
  EXPECT_EQ(reader->get("bytes", patience()), bytes);
  EXPECT_EQ(reader->get("", patience()), "empty key");
  EXPECT_EQ(reader->get("empty value", patience()), "");
  writer->set("bytes", "replaced");
  EXPECT_EQ(reader->get("bytes", patience()), "replaced");
}

TYPED_TEST(StoreTest, AKeyThatIsSetIsFoundAfterTheDeadlineToo) {
  const auto store = this->world.open();
  store->set("key", "value");
  EXPECT_EQ(store->get("key", Deadline(-1s)), "value");
}

TYPED_TEST(StoreTest, CountersStartAtZeroAndSum) {
  const auto first = this->world.open(), second = this->world.open();
  EXPECT_EQ(first->add("count", 3), 3);
  EXPECT_EQ(second->add("count", -5), -2);
  EXPECT_EQ(first->add("another", 0), 0);
}

TYPED_TEST(StoreTest, SetWakesAGetThatWaits) {
  const auto reader = this->world.open(), writer = this->world.open();
  auto value = std::async(std::launch::async, [&] { return reader->get("late", patience()); });
  // Nothing shows from outside that the other thread waits; both orders have to work.
  std::this_thread::yield();
  writer->set("late", "here");
  EXPECT_EQ(value.get(), "here");
}

TYPED_TEST(StoreTest, ATimeoutNamesTheKeyAndTheStoreStaysUsable) {
  const auto store = this->world.open();
  for (const auto wait : {0ms, 20ms}) {
    const Nanoseconds began = now();
    const Error error = error_of([&] { store->get("address/7", Deadline(wait)); });
    EXPECT_EQ(error.code(), ErrorCode::Timeout);
    EXPECT_NE(error.message().find("\"address/7\""), std::string::npos) << error.what();
    EXPECT_GE(now() - began, wait);
  }
  store->set("address/7", "x");
  EXPECT_EQ(store->get("address/7", patience()), "x");
}

TYPED_TEST(StoreTest, ThreadsMayShareOneStoreWhileOneWaits) {
  const auto store = this->world.open();
  auto value = std::async(std::launch::async, [&] { return store->get("needed", patience()); });
  EXPECT_EQ(store->add("count", 1), 1);
  store->set("needed", "given");
  EXPECT_EQ(value.get(), "given");
}

TYPED_TEST(StoreTest, AFailureReachesAllWhoWaitAndAllLaterCalls) {
  constexpr int kWaiting = 4;
  std::vector<std::future<Error>> errors;
  for (int i = 0; i < kWaiting; ++i) {
    errors.push_back(std::async(std::launch::async, [store = this->world.open()] {
      return error_of([&] { store->get("never", patience()); });
    }));
  }
  const auto failing = this->world.open();
  failing->fail(2, {ErrorCode::Mismatch, "sizes 3 and 4 differ"});
  failing->fail(1, {ErrorCode::PeerLost, "rank 2 is gone"});
  for (auto& future : errors) {
    const Error error = future.get();
    EXPECT_EQ(error.code(), ErrorCode::Aborted);
    EXPECT_EQ(error.peer(), 2);
    EXPECT_EQ(error.cause(), Cause::Consequence);
    EXPECT_NE(error.message().find("sizes 3 and 4 differ"), std::string::npos) << error.what();
    EXPECT_NE(error.message().find("MISMATCH"), std::string::npos) << error.what();
  }
  const auto late = this->world.open();
  EXPECT_EQ(error_of([&] { late->set("key", "value"); }).peer(), 2);
  EXPECT_EQ(error_of([&] { late->add("key", 1); }).peer(), 2);
  EXPECT_EQ(error_of([&] { late->get("key", patience()); }).peer(), 2);
}

TYPED_TEST(StoreTest, ALostProcessIsPeerLost) {
  const auto store = this->world.open();
  store->fail(1, {ErrorCode::PeerLost, "killed by signal 9 (SIGKILL)"});
  EXPECT_EQ(error_of([&] { store->get("key", patience()); }).code(), ErrorCode::PeerLost);
}

TYPED_TEST(StoreTest, SixteenRanksFindEachOther) {
  constexpr int kRanks = 16, kRounds = 20;
  std::vector<std::jthread> ranks;
  std::atomic<int> right{0};
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank, store = this->world.open()] {
      for (int round = 0; round < kRounds; ++round) {
        store->set(fmt::format("{}/{}", round, rank), std::to_string(rank * round));
        store->add("sets", 1);
        for (int peer = 0; peer < kRanks; ++peer) {
          right += store->get(fmt::format("{}/{}", round, peer), patience()) == std::to_string(peer * round);
        }
      }
    });
  }
  ranks.clear();
  EXPECT_EQ(right, kRanks * kRanks * kRounds);
  EXPECT_EQ(this->world.open()->add("sets", 0), kRanks * kRounds);
}

// ---- The server and its protocol.

/// A client that may send anything.
UniqueFd raw_client(const StoreServer& server) {
  const UnixAddress to(server.address().substr(std::string_view("unix:@").size()));
  UniqueFd fd = unix_socket(SOCK_STREAM);
  if (::connect(fd.get(), to.get(), to.length()) != 0) throw system_error("connect", errno);
  return fd;
}

void send_all(const UniqueFd& fd, const std::string& bytes) {
  // The server may close the connection in the middle; that is what these tests are about.
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::send(fd.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count < 0) return;
    sent += static_cast<std::size_t>(count);
  }
}

bool server_closes(const UniqueFd& fd) {
  char byte;
  while (true) {
    pollfd polled{fd.get(), POLLIN, 0};
    if (::poll(&polled, 1, 60'000) <= 0) return false;
    if (::recv(fd.get(), &byte, 1, 0) <= 0) return true;
  }
}

std::string little_endian(std::uint32_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return bytes;
}

TEST(StoreProtocol, EveryMessageComesBackFromAnySplit) {
  const StoreMessage message{
      .op = StoreOp::Set, .number = -123456789012345, .key = "key", .value = std::string(40, '\0')};
  const std::string bytes = encode(message);
  for (std::size_t split = 0; split < bytes.size(); ++split) {
    std::string buffer = bytes.substr(0, split);
    EXPECT_FALSE(take_message(buffer));
    buffer += bytes.substr(split) + "rest";
    const auto taken = take_message(buffer);
    ASSERT_TRUE(taken);
    EXPECT_EQ(taken->op, message.op);
    EXPECT_EQ(taken->number, message.number);
    EXPECT_EQ(taken->key, message.key);
    EXPECT_EQ(taken->value, message.value);
    EXPECT_EQ(buffer, "rest");
  }
}

TEST(StoreProtocol, MalformedFramesAreCorrupt) {
  const std::string good = encode({.op = StoreOp::Get, .number = 1, .key = "key"});
  std::string unknown_op = good, long_key = good;
  unknown_op[4] = 77;
  long_key[13] = 127;
  for (std::string bytes : {little_endian(0), little_endian(12), little_endian(kMaxStoreFrame + 1),
                            little_endian(0xffffffff), std::string("GET / HTTP/1.1\r\n"), unknown_op, long_key}) {
    const Error error = error_of([&] { take_message(bytes); });
    EXPECT_EQ(error.code(), ErrorCode::Corrupt);
  }
}

TEST(StoreProtocol, AMessageOverTheLimitIsNotSent) {
  StoreServer server;
  const auto store = connect_store(server.address(), patience());
  EXPECT_EQ(error_of([&] { store->set("key", std::string(kMaxStoreFrame, 'x')); }).code(), ErrorCode::InvalidArgument);
  store->set("key", std::string(kMaxStoreFrame - 100, 'x'));
  EXPECT_EQ(store->get("key", patience()).size(), kMaxStoreFrame - 100);
}

TEST(StoreProtocol, RandomBytesNeverCrashTheDecoder) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes;
    if (round % 2 == 0) {
      bytes.resize(random() % 64);
      for (char& byte : bytes) byte = static_cast<char>(random());
      if (bytes.size() >= 4 && round % 4 == 0) bytes.replace(0, 4, little_endian(random() % 64));
    } else {
      bytes = encode({.op = StoreOp::Set, .number = round, .key = "some key", .value = "some value"});
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    }
    try {
      const std::size_t before = bytes.size();
      const auto message = take_message(bytes);
      EXPECT_EQ(bytes.size() < before, message.has_value());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Corrupt);
    }
  }
}

TEST(StoreServer, JunkIsCutOffAndDisturbsNobody) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  StoreServer server;
  const auto store = connect_store(server.address(), patience());
  for (int round = 0; round < 50; ++round) {
    const UniqueFd http = raw_client(server), reply = raw_client(server), noise = raw_client(server);
    send_all(http, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    send_all(reply, encode({.op = StoreOp::Done}));
    std::string bytes(random() % 4096, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    send_all(noise, bytes);
    EXPECT_TRUE(server_closes(http));
    EXPECT_TRUE(server_closes(reply));
    store->set("round", std::to_string(round));
    EXPECT_EQ(store->get("round", patience()), std::to_string(round));
  }
  EXPECT_FALSE(server.first_failure());
}

TEST(StoreServer, AnswersRequestsThatWereSentTogether) {
  StoreServer server;
  constexpr int kRequests = 50'000;  // deep recursion or unbounded replies would show
  const UniqueFd client = raw_client(server);
  std::jthread sender([&] {
    std::string bytes;
    for (int i = 0; i < kRequests; ++i) bytes += encode({.op = StoreOp::Get, .key = "k"});
    send_all(client, bytes);
  });
  std::string received;
  std::vector<char> bytes(65536);
  for (int answers = 0; answers < kRequests;) {
    const ssize_t count = ::recv(client.get(), bytes.data(), bytes.size(), 0);
    ASSERT_GT(count, 0);
    received.append(bytes.data(), static_cast<std::size_t>(count));
    while (const auto message = take_message(received)) {
      EXPECT_EQ(message->op, StoreOp::TimedOut);
      ++answers;
    }
  }
}

TEST(StoreServer, AWaitingClientThatDisconnectsIsForgotten) {
  StoreServer server;
  {
    const UniqueFd client = raw_client(server);
    send_all(client, encode({.op = StoreOp::Get, .number = 3'600'000, .key = "key"}));
  }
  const auto store = connect_store(server.address(), patience());
  store->set("key", "value");
  EXPECT_EQ(store->get("key", patience()), "value");
}

TEST(StoreServer, RefusesMoreThanItsLimitAndGoesOn) {
  StoreServer server;
  const auto store = connect_store(server.address(), patience());
  const std::string big(kMaxStoreFrame - 100, 'x');
  const auto fill = [&] {
    for (int i = 0; i < 100; ++i) store->set(std::to_string(i), big);
  };
  EXPECT_EQ(error_of(fill).code(), ErrorCode::System);
  store->set("0", "small again");
  EXPECT_EQ(store->get("0", patience()), "small again");
}

TEST(StoreServer, TheLauncherSeesTheFirstReportOfEachRank) {
  StoreServer server;
  const auto store = connect_store(server.address(), patience());
  server.set("from", "launcher");
  EXPECT_EQ(store->get("from", patience()), "launcher");
  EXPECT_FALSE(server.first_failure());
  store->fail(1, {ErrorCode::Timeout, "nothing from rank 0"});
  store->fail(1, {ErrorCode::Aborted, "second report"});
  store->fail(0, {ErrorCode::Timeout, "told by rank 1", 0, 1, Cause::Consequence});
  ASSERT_TRUE(server.first_failure());
  EXPECT_EQ(server.first_failure()->message, "nothing from rank 0");
  const auto failures = server.failures();
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures.at(1).code, "E401 TIMEOUT");
  EXPECT_EQ(failures.at(1).cause, Cause::First);
  EXPECT_EQ(failures.at(0).cause, Cause::Consequence);
}

bool tells_of_early_exit(const StoreServer& server) {
  pollfd polled{server.left_too_early_fd(), POLLIN, 0};
  return ::poll(&polled, 1, 60'000) == 1 && server.left_too_early().has_value();
}

TEST(StoreServer, ARankThatLeavesBeforeItJoinedWakesThoseWhoWait) {
  for (int round = 0; round < 200; ++round) {  // for all orders of the request and the leave
    StoreServer server;
    const auto store = connect_store(server.address(), patience());
    auto error = std::async(std::launch::async, [&] { return error_of([&] { store->get("address/1", patience()); }); });
    if (round % 2 == 0) server.set("order", "another wake-up");
    server.left(1);
    ASSERT_EQ(error.get().code(), ErrorCode::PeerLost);
    ASSERT_TRUE(tells_of_early_exit(server));
    EXPECT_EQ(server.left_too_early()->rank, 1);
  }
}

TEST(StoreServer, ARankThatLeavesFailsThoseWhoComeLater) {
  StoreServer server;
  server.left(1);
  const auto store = connect_store(server.address(), patience());
  EXPECT_FALSE(server.first_failure()) << "connecting is not waiting";
  EXPECT_EQ(error_of([&] { store->get("address/1", patience()); }).peer(), 1);
  EXPECT_TRUE(tells_of_early_exit(server));
}

TEST(StoreServer, LeavingAfterJoiningOrAloneIsNoFailure) {
  StoreServer server;
  {
    const auto own = connect_store(server.address(), patience());
    own->set("address/0", "x");
  }
  server.left(0);  // its own connection is closed, as it is when its process has ended
  const auto store = connect_store(server.address(), patience());
  server.set("joined/1", "");
  server.left(1);
  EXPECT_FALSE(server.first_failure());
}

TEST(StoreServer, AnEndedLauncherIsASystemErrorAtOnce) {
  auto server = std::make_unique<StoreServer>();
  const std::string address = server->address();
  const auto store = connect_store(address, patience());
  auto waiting = std::async(std::launch::async, [&] { return error_of([&] { store->get("key", patience()); }); });
  store->set("seen", "");
  server.reset();
  EXPECT_EQ(waiting.get().code(), ErrorCode::System);
  EXPECT_EQ(error_of([&] { connect_store(address, patience()); }).code(), ErrorCode::System);
  store->fail(0, {ErrorCode::Timeout, "nobody hears it, and that is no error"});
}

TEST(StoreClient, SomethingElseThanAnAddressIsRefused) {
  for (const std::string address : {"", "unix:@", "tcp:", "tcp:1.2.3.4", "tcp:fd00::1:5", "tcp:1.2.3.4:x", "socket"}) {
    EXPECT_EQ(error_of([&] { connect_store(address, patience()); }).code(), ErrorCode::InvalidArgument) << address;
  }
  EXPECT_EQ(error_of([&] { connect_store("unix:@" + std::string(200, 'x'), patience()); }).code(),
            ErrorCode::InvalidArgument);
}

}  // namespace
}  // namespace paceline
