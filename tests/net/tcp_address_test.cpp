// Which addresses of this host ranks listen on.
#include "paceline/net/tcp_address.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "paceline/base/error.h"
#include "paceline/net/tcp_socket.h"

namespace paceline {
namespace {

TEST(TcpAddress, ListsOfInterfacesAreNccls) {
  EXPECT_TRUE(chooses_interface("eth,ens", "eth0"));
  EXPECT_TRUE(chooses_interface("eth,ens", "ens5"));
  EXPECT_FALSE(chooses_interface("eth,ens", "lo"));
  EXPECT_TRUE(chooses_interface("=eth0", "eth0"));
  EXPECT_FALSE(chooses_interface("=eth0", "eth01"));
  EXPECT_TRUE(chooses_interface("=eth0,lo", "lo"));
  EXPECT_FALSE(chooses_interface("^docker,lo", "docker0"));
  EXPECT_FALSE(chooses_interface("^docker,lo", "lo"));
  EXPECT_TRUE(chooses_interface("^docker,lo", "eth0"));
  EXPECT_TRUE(chooses_interface("^=lo", "lo1"));
  EXPECT_FALSE(chooses_interface("^=lo", "lo"));
  EXPECT_FALSE(chooses_interface("", "eth0"));
  EXPECT_FALSE(chooses_interface(",", "eth0"));
}

TEST(TcpAddress, TextOfBothFamilies) {
  const SocketAddress v4("10.1.2.3", 80), v6("fd00::1", 443);
  EXPECT_EQ(v4.text(), "10.1.2.3:80");
  EXPECT_EQ(v6.text(), "[fd00::1]:443");
  EXPECT_EQ(v6.with_port(7).text(), "[fd00::1]:7");
  EXPECT_FALSE(v4.is_loopback());
  EXPECT_FALSE(v6.is_loopback());
  EXPECT_TRUE(SocketAddress("127.3.0.1", 0).is_loopback());
  EXPECT_TRUE(SocketAddress("::1", 0).is_loopback());
  EXPECT_THROW(SocketAddress("localhost", 1), Error);
}

TEST(TcpAddress, LoopbackUnlessAskedOtherwise) {
  ASSERT_EQ(addresses_to_bind("").size(), 1u);
  EXPECT_TRUE(addresses_to_bind("")[0].is_loopback());
  EXPECT_EQ(addresses_to_bind("10.1.2.3")[0].host(), "10.1.2.3");
  for (const SocketAddress& address : addresses_to_bind("=lo")) EXPECT_TRUE(address.is_loopback());
  EXPECT_TRUE(addresses_to_bind("route:127.0.0.1")[0].is_loopback());
  EXPECT_TRUE(address_towards("localhost").is_loopback());
}

TEST(TcpAddress, WhatCannotBeFollowedIsSaid) {
  const auto said = [](const std::string& bind) {
    try {
      (void)addresses_to_bind(bind);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      return error.message();
    }
    return std::string("accepted");
  };
  EXPECT_NE(said("=nosuch0").find("lo", said("=nosuch0").find("there are ")), std::string::npos) << said("=nosuch0");
  EXPECT_NE(said("route:no.such.host.invalid").find("no.such.host.invalid"), std::string::npos);
}

TEST(TcpSocket, TakesTheFirstFreePortOfARange) {
  const SocketAddress loopback("127.0.0.1", 0);
  const UniqueFd first = listen_on(loopback, {}, 1);
  const std::uint16_t taken = local_address(first.get()).port();
  ASSERT_LT(taken, 65535);
  try {
    (void)listen_on(loopback, PortRange::only(taken), 1);
    FAIL() << "two listen on one port";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find(std::to_string(taken)), std::string::npos) << error.message();
  }
  // Whoever may hold ports above it, some port of the range is free.
  const UniqueFd second = listen_on(loopback, {taken, static_cast<std::uint16_t>(std::min(taken + 500, 65535))}, 1);
  EXPECT_GT(local_address(second.get()).port(), taken);
  EXPECT_THROW((void)listen_on(loopback, {5, 4}, 1), Error);
}

TEST(TcpSocket, SaysWhyItCannotConnect) {
  UniqueFd listener = listen_on(SocketAddress("127.0.0.1", 0), {}, 1);
  const SocketAddress address = local_address(listener.get());
  std::string why;
  EXPECT_TRUE(connect_to(address, Deadline(std::chrono::seconds(10)), why)) << why;
  listener.reset();
  EXPECT_FALSE(connect_to(address, Deadline(std::chrono::seconds(10)), why));
  EXPECT_NE(why.find("refused"), std::string::npos) << why;
}

}  // namespace
}  // namespace paceline
