// The store over TCP: who is let in, what strangers cost, and what a client says that cannot reach it. What a store
// promises to those inside is in store_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "paceline/base/error.h"
#include "paceline/net/acceptor.h"
#include "paceline/net/connect_authenticated.h"
#include "paceline/net/host_port.h"
#include "paceline/net/tcp_address.h"
#include "paceline/net/tcp_socket.h"
#include "paceline/store/protocol.h"
#include "paceline/store/server.h"
#include "paceline/store/store.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

Deadline patience() { return Deadline(60s); }

template <class Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  throw std::logic_error("the call did not throw");
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct TcpStore : testing::Test {
  const Secret secret = Secret::random();
  StoreServer server{{.addresses = {SocketAddress("127.0.0.1", 0)}, .secret = secret}};
  const SocketAddress address = [this] {
    const HostPort at = parse_host_port(server.tcp_addresses().front().substr(4));
    return SocketAddress(at.host, at.port);
  }();

  UniqueFd stranger() const {
    std::string why;
    UniqueFd socket = connect_to(address, patience(), why);
    if (!socket) throw std::runtime_error(why);
    return socket;
  }
};

bool is_closed(const UniqueFd& socket) {
  char bytes[256];
  while (true) {
    pollfd polled{socket.get(), POLLIN, 0};
    if (::poll(&polled, 1, 60'000) <= 0) return false;
    if (::recv(socket.get(), bytes, sizeof bytes, 0) <= 0) return true;
  }
}

TEST(StoreServerOverTcp, ServesOnAllItsAddressesAndWithinARangeOfPorts) {
  const Secret secret = Secret::random();
  const StoreServer first({.addresses = {SocketAddress("127.0.0.1", 0), SocketAddress("::1", 0)}, .secret = secret});
  ASSERT_EQ(first.tcp_addresses().size(), 2u);
  for (const std::string& address : first.tcp_addresses()) {
    const auto store = connect_store(address, patience(), secret);
    store->set(address, "value");
    EXPECT_EQ(store->get(address, patience()), "value");
  }
  // The first port of the range is taken.
  const std::uint16_t taken = parse_host_port(first.tcp_addresses()[1].substr(4)).port;
  const auto last = static_cast<std::uint16_t>(std::min(65535, taken + 200));
  const StoreServer second({{SocketAddress("::1", 0)}, {taken, last}, secret});
  const std::uint16_t port = parse_host_port(second.tcp_addresses().front().substr(4)).port;
  EXPECT_GT(port, taken);
  EXPECT_LE(port, last);
  EXPECT_TRUE(StoreServer().tcp_addresses().empty());
}

TEST_F(TcpStore, ANameIsTriedAtAllItsAddresses) {
  // On many hosts "localhost" is ::1 first, where this server does not listen.
  const auto store = connect_store(fmt::format("tcp:localhost:{}", address.port()), patience(), secret);
  store->set("key", "value");
  EXPECT_EQ(store->get("key", patience()), "value");
}

TEST_F(TcpStore, AnotherSecretIsAMismatchThatNamesHostAndPort) {
  const Error error = error_of([&] { connect_store(server.tcp_addresses().front(), patience(), Secret::random()); });
  EXPECT_EQ(error.code(), ErrorCode::Mismatch);
  EXPECT_TRUE(contains(error.message(), address.text())) << error.message();
  EXPECT_TRUE(contains(error.message(), "secret")) << error.message();
  const Error without = error_of([&] { connect_store(server.tcp_addresses().front(), patience()); });
  EXPECT_EQ(without.code(), ErrorCode::InvalidArgument);
  EXPECT_TRUE(contains(without.message(), "PACELINE_SECRET_FILE")) << without.message();
}

TEST_F(TcpStore, WhoWantsSomethingElseThanTheStoreIsSentAway) {
  for (const Introduction& other : {introduction_for(Purpose::Launcher), Introduction{0x1234567812345678, 1, 0, 2}}) {
    UniqueFd socket;
    std::string why;
    EXPECT_EQ(connect_authenticated(address, secret, other, patience(), socket, why), ConnectOutcome::HungUp);
  }
}

TEST(StoreClientOverTcp, SaysWhichHostAndPortItCannotReach) {
  const Secret secret = Secret::random();
  std::string gone;
  {
    const StoreServer server({.addresses = {SocketAddress("127.0.0.1", 0)}, .secret = secret});
    gone = server.tcp_addresses().front();
  }
  const Error refused = error_of([&] { connect_store(gone, patience(), secret); });
  EXPECT_EQ(refused.code(), ErrorCode::System);
  EXPECT_TRUE(contains(refused.message(), gone.substr(4))) << refused.message();
  EXPECT_TRUE(contains(refused.message(), "has ended")) << refused.message();

  // 192.0.2.0/24 is for documentation: nobody is there.
  const Error unreachable = error_of([&] { connect_store("tcp:192.0.2.1:4711", Deadline(50ms), secret); });
  EXPECT_EQ(unreachable.code(), ErrorCode::System);
  EXPECT_TRUE(contains(unreachable.message(), "192.0.2.1:4711")) << unreachable.message();

  const Error unknown = error_of([&] { connect_store("tcp:no-such-host.invalid:4711", patience(), secret); });
  EXPECT_EQ(unknown.code(), ErrorCode::InvalidArgument);
  EXPECT_TRUE(contains(unknown.message(), "\"no-such-host.invalid\" does not resolve")) << unknown.message();
}

TEST(StoreClientOverTcp, SomethingElseAtThePortIsNamed) {
  const UniqueFd listener = listen_on(SocketAddress("127.0.0.1", 0), {}, 16);
  const SocketAddress address = local_address(listener.get());
  std::jthread other([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pollfd polled{listener.get(), POLLIN, 0};
      if (::poll(&polled, 1, 10) <= 0) continue;
      const UniqueFd caller(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const std::string page = "HTTP/1.1 400 Bad Request, and enough of it to fill what a challenge takes\r\n\r\n";
      if (caller) ::send(caller.get(), page.data(), page.size(), MSG_NOSIGNAL);
    }
  });
  const Error error = error_of([&] { connect_store("tcp:" + address.text(), Deadline(1s), Secret::random()); });
  EXPECT_TRUE(contains(error.message(), "something else listens at " + address.text())) << error.message();
}

TEST(StoreClientOverTcp, ASlowServerIsWaitedFor) {
  // A server that is stopped: the kernel accepts, and nobody answers until it goes on.
  const Secret secret = Secret::random();
  std::vector<UniqueFd> listeners;
  listeners.push_back(listen_on(SocketAddress("127.0.0.1", 0), {}, 16));
  const std::string address = "tcp:" + local_address(listeners.front().get()).text();
  auto client = std::async(std::launch::async, [&] { return connect_store(address, patience(), secret); });
  pollfd polled{listeners.front().get(), POLLIN, 0};
  ASSERT_EQ(::poll(&polled, 1, 60'000), 1);
  EXPECT_EQ(client.wait_for(0s), std::future_status::timeout);
  Acceptor acceptor(std::move(listeners), secret);
  auto candidate = acceptor.next(60s);
  ASSERT_TRUE(candidate);
  EXPECT_EQ(candidate->introduction, introduction_for(Purpose::Store));
  ASSERT_TRUE(send_all(candidate->socket.get(), candidate->answer, patience()));
  EXPECT_NE(client.get(), nullptr);
}

TEST_F(TcpStore, StrangersAreSentAwayAndDisturbNobody) {
  const std::uint64_t seed = test::seed();
  SCOPED_TRACE(fmt::format("PACELINE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  const auto store = connect_store(server.tcp_addresses().front(), patience(), secret);
  std::vector<UniqueFd> silent;  // more than are heard at a time
  for (std::size_t i = 0; i < Acceptor::kAtOnce + 20; ++i) silent.push_back(stranger());
  for (int round = 0; round < 100; ++round) {
    const UniqueFd junk = stranger(), request = stranger();
    std::string bytes(Handshake::kProofBytes + random() % 400, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    ::send(junk.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    // A good request, but nothing is proved.
    std::string ask = encode({.op = StoreOp::Set, .key = "round", .value = "stolen"});
    ask.resize(Handshake::kProofBytes, '\0');
    ::send(request.get(), ask.data(), ask.size(), MSG_NOSIGNAL);
    EXPECT_TRUE(is_closed(junk));
    EXPECT_TRUE(is_closed(request));
    store->set("round", std::to_string(round));
    EXPECT_EQ(store->get("round", patience()), std::to_string(round));
  }
  // All of the silent ones, the last of them when their time is over.
  for (const UniqueFd& socket : silent) EXPECT_TRUE(is_closed(socket));
  const auto late = connect_store(server.tcp_addresses().front(), patience(), secret);
  EXPECT_EQ(late->get("round", patience()), "99");
}

TEST(HostPort, IsReadAsUsersWriteIt) {
  EXPECT_EQ(parse_host_port("node-0:4000").host, "node-0");
  EXPECT_EQ(parse_host_port("node-0:4000").port, 4000);
  EXPECT_EQ(parse_host_port("[fd00::1]:4000").host, "fd00::1");
  for (const std::string bad : {"", "host", ":4000", "host:", "host:70000", "host:-1", "fd00::1:4000", "[]:4000",
                                "host:4000x", "[fd00::1]4000"}) {
    EXPECT_EQ(error_of([&] { parse_host_port(bad); }).code(), ErrorCode::InvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace paceline
