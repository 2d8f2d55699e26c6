#include "paceline/net/host_port.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>

#include "paceline/base/error.h"

namespace paceline {

std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port) {
  if (is_numeric_address(host)) return {SocketAddress(host, port)};
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &wanted, &first); error != 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the host name \"{}\" does not resolve: {}. Is it spelt right, and known on this host "
                            "(getent hosts {})? A numeric address works without names",
                            host, error == EAI_SYSTEM ? system_error("", errno).message() : gai_strerror(error), host));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(first, &freeaddrinfo);
  std::vector<SocketAddress> found;
  for (const addrinfo* at = first; at != nullptr; at = at->ai_next) {
    if (at->ai_family != AF_INET && at->ai_family != AF_INET6) continue;
    const SocketAddress address = SocketAddress(at->ai_addr, at->ai_addrlen).with_port(port);
    const auto same = [&](const SocketAddress& other) { return other.text() == address.text(); };
    if (std::none_of(found.begin(), found.end(), same)) found.push_back(address);
  }
  if (found.empty()) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("the host name \"{}\" has no IPv4 or IPv6 address", host));
  }
  return found;
}

HostPort parse_host_port(const std::string& text) {
  HostPort result;
  const std::size_t colon = text.rfind(':');
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  result.host = text.substr(0, colon);
  const bool bracketed = result.host.size() > 2 && result.host.front() == '[' && result.host.back() == ']';
  if (bracketed) result.host = result.host.substr(1, result.host.size() - 2);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), result.port);
  const bool whole = error == std::errc() && end == port.data() + port.size() && !port.empty();
  // "fd00::1" without brackets would lose its last group to the port.
  const bool ambiguous = !bracketed && result.host.find_first_of(":[]") != std::string::npos;
  if (!whole || result.host.empty() || ambiguous) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("\"{}\" is no HOST:PORT, e.g. node0:4000, 10.0.0.1:4000 or [fd00::1]:4000", text));
  }
  return result;
}

}  // namespace paceline
