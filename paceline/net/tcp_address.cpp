#include "paceline/net/tcp_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>

#include "paceline/base/error.h"
#include "paceline/base/unique_fd.h"

namespace paceline {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

constexpr const char* kRoute = "route:";

std::vector<SocketAddress> addresses_of_interfaces(const std::string& list) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw system_error("cannot list network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, &freeifaddrs);
  std::vector<SocketAddress> found;
  std::set<std::string> names;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    names.insert(at->ifa_name);
    if (!chooses_interface(list, at->ifa_name)) continue;
    const SocketAddress address(at->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    // A link-local address means something only together with an interface of the host that uses it.
    if (address.host().starts_with("fe80:")) continue;
    found.push_back(address);
  }
  if (found.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("no network interface that is up and has an address is chosen by \"{}\"; there are {}",
                            list, fmt::join(names, ", ")));
  }
  std::stable_sort(found.begin(), found.end(), [](const SocketAddress& a, const SocketAddress& b) {
    return a.family() == AF_INET && b.family() != AF_INET;
  });
  return found;
}

}  // namespace

SocketAddress::SocketAddress(const std::string& host, std::uint16_t port) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&storage_, &v4, length_ = sizeof v4);
  } else if (::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&storage_, &v6, length_ = sizeof v6);
  } else {
    throw Error(ErrorCode::InvalidArgument, fmt::format("\"{}\" is no IPv4 or IPv6 address", host));
  }
}

SocketAddress::SocketAddress(const sockaddr* address, socklen_t length) : length_(length) {
  std::memcpy(&storage_, address, std::min<std::size_t>(length, sizeof storage_));
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST] = "";
  if (::getnameinfo(get(), length_, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return text;
}

std::uint16_t SocketAddress::port() const {
  // At the same place in both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

SocketAddress SocketAddress::with_port(std::uint16_t port) const {
  SocketAddress other = *this;
  reinterpret_cast<sockaddr_in*>(&other.storage_)->sin_port = htons(port);
  return other;
}

std::string SocketAddress::text() const {
  return family() == AF_INET6 ? fmt::format("[{}]:{}", host(), port()) : fmt::format("{}:{}", host(), port());
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24) == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr) != 0;
}

bool is_numeric_address(const std::string& host) {
  unsigned char ignored[sizeof(in6_addr)];
  return ::inet_pton(AF_INET, host.c_str(), ignored) == 1 || ::inet_pton(AF_INET6, host.c_str(), ignored) == 1;
}

bool chooses_interface(std::string_view list, std::string_view interface) {
  const auto take = [&](char mark) {
    const bool there = list.starts_with(mark);
    if (there) list.remove_prefix(1);
    return there;
  };
  const bool others = take('^');
  const bool exact = take('=');
  bool named = false;
  while (!list.empty()) {
    const std::string_view name = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), name.size() + 1));
    if (!name.empty()) named |= exact ? interface == name : interface.starts_with(name);
  }
  return named != others;
}

std::vector<SocketAddress> addresses_to_bind(const std::string& bind) {
  if (bind.empty()) return {SocketAddress("127.0.0.1", 0)};
  if (bind.starts_with(kRoute)) return {address_towards(bind.substr(std::strlen(kRoute))).with_port(0)};
  if (is_numeric_address(bind)) return {SocketAddress(bind, 0)};
  return addresses_of_interfaces(bind);
}

SocketAddress address_towards(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_DGRAM;
  addrinfo* first = nullptr;
  // The port is not used: nothing is sent.
  if (const int error = ::getaddrinfo(host.c_str(), "9", &wanted, &first); error != 0) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("cannot find the host \"{}\": {}", host, gai_strerror(error)));
  }
  const AddressList owner(first, &freeaddrinfo);
  for (const addrinfo* at = first; at != nullptr; at = at->ai_next) {
    const UniqueFd socket(::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    if (socket && ::connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0) {
      return {reinterpret_cast<const sockaddr*>(&own), length};
    }
  }
  throw Error(ErrorCode::InvalidArgument, fmt::format("no route leads to the host \"{}\"", host));
}

}  // namespace paceline
