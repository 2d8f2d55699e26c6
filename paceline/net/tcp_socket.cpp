#include "paceline/net/tcp_socket.h"

#include <fmt/format.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "paceline/base/error.h"

namespace paceline {
namespace {

void set_option(int socket, int level, int name, int value, const char* what) {
  if (::setsockopt(socket, level, name, &value, sizeof value) != 0) {
    throw system_error(fmt::format("cannot set {} on a socket", what), errno);
  }
}

/// False when the time is over.
bool wait_for(int socket, short events, Deadline deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left()).count();
    if (left <= 0) return false;
    pollfd entry{socket, events, 0};
    if (::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(left, 1000))) > 0) return true;
  }
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

/// Calls `move(done)`, which moves bytes and gives recv()'s or send()'s result, until `size` bytes are done.
template <class Move>
bool move_all(int socket, short events, std::size_t size, Deadline deadline, Move&& move) {
  for (std::size_t done = 0; done < size;) {
    const ssize_t bytes = move(done);
    if (bytes > 0) done += static_cast<std::size_t>(bytes);
    else if (bytes == 0 || !would_block(errno) || !wait_for(socket, events, deadline)) return false;
  }
  return true;
}

}  // namespace

UniqueFd listen_on(const SocketAddress& address, PortRange ports, int backlog) {
  if (ports.first > ports.last) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("{}-{} is no range of ports", ports.first, ports.last));
  }
  UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) throw system_error("cannot make a socket", errno);
  if (address.family() == AF_INET6) set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1, "IPV6_V6ONLY");
  // A port whose last user has just gone is free.
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  int error = 0;
  for (std::uint32_t port = ports.first; port <= ports.last; ++port) {
    const SocketAddress candidate = address.with_port(static_cast<std::uint16_t>(port));
    if (::bind(socket.get(), candidate.get(), candidate.length()) == 0 && ::listen(socket.get(), backlog) == 0) {
      return socket;
    }
    error = errno;
    if (error != EADDRINUSE) break;
  }
  std::string where = address.host();
  if (ports.first != 0) where += fmt::format(", port {}", ports.first);
  if (ports.first != ports.last) where += fmt::format(" to {}", ports.last);
  throw system_error(fmt::format("cannot listen on {}", where), error);
}

SocketAddress local_address(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (::getsockname(socket, raw, &length) != 0) throw system_error("cannot read a socket's address", errno);
  return {raw, length};
}

SocketAddress peer_address(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (::getpeername(socket, raw, &length) != 0) throw system_error("cannot read a socket's peer", errno);
  return {raw, length};
}

UniqueFd connect_to(const SocketAddress& address, Deadline deadline, std::string& why) {
  UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int error = socket ? 0 : errno;
  if (socket && ::connect(socket.get(), address.get(), address.length()) != 0) {
    error = errno;
    if (error == EINPROGRESS) {
      socklen_t length = sizeof error;
      error = ETIMEDOUT;
      if (wait_for(socket.get(), POLLOUT, deadline)) {
        ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      }
    }
  }
  if (error == 0) return socket;
  why = fmt::format("{}: {}", address.text(), system_error("connecting", error).message());
  errno = error;
  return {};
}

bool send_all(int socket, std::span<const std::byte> data, Deadline deadline) {
  return move_all(socket, POLLOUT, data.size(), deadline, [&](std::size_t done) {
    return ::send(socket, data.data() + done, data.size() - done, MSG_NOSIGNAL);
  });
}

bool receive_all(int socket, std::span<std::byte> data, Deadline deadline) {
  return move_all(socket, POLLIN, data.size(), deadline,
                  [&](std::size_t done) { return ::recv(socket, data.data() + done, data.size() - done, 0); });
}

void tune(int socket, Nanoseconds silence) {
  const auto milliseconds =
      std::max<std::int64_t>(1000, std::chrono::duration_cast<std::chrono::milliseconds>(silence).count());
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  // The system's choice may pace what it sends (bbr does), at half the speed. Where this is not allowed, that is all.
  if (local_address(socket).is_loopback()) (void)::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  // Data that nobody acknowledges, and, where none are on the way, questions that nobody answers.
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(milliseconds), "TCP_USER_TIMEOUT");
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 1, "TCP_KEEPIDLE");
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1, "TCP_KEEPINTVL");
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, static_cast<int>(std::min<std::int64_t>(milliseconds / 1000, 127)),
             "TCP_KEEPCNT");
}

}  // namespace paceline
