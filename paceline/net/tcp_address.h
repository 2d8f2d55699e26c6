#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

/// An IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  /// From numbers: "127.0.0.1", "fd00::1". Throws InvalidArgument for anything else.
  SocketAddress(const std::string& host, std::uint16_t port);
  SocketAddress(const sockaddr* address, socklen_t length);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const { return length_; }
  int family() const { return storage_.ss_family; }
  std::string host() const;
  std::uint16_t port() const;
  SocketAddress with_port(std::uint16_t port) const;
  /// "127.0.0.1:4711", "[fd00::1]:4711".
  std::string text() const;
  bool is_loopback() const;

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

bool is_numeric_address(const std::string& host);

/// True if an interface of this name is chosen by a list in NCCL's syntax: "eth,ens" by prefix, "=eth0,eth1" by name;
/// "^docker,lo" and "^=docker0" choose all others.
bool chooses_interface(std::string_view list, std::string_view interface);

/// The addresses of this host that TcpOptions::bind stands for, with port 0, IPv4 first. Throws InvalidArgument, naming
/// the interfaces that there are, where it stands for none.
std::vector<SocketAddress> addresses_to_bind(const std::string& bind);

/// The address of this host from which the kernel would talk to `host`, a name or an address. Sends nothing. Throws
/// InvalidArgument where the name is not known or no route leads there.
SocketAddress address_towards(const std::string& host);

}  // namespace paceline
