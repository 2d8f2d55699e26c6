#include "paceline/net/unix_socket.h"

#include <fmt/format.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "paceline/base/error.h"
#include "paceline/base/random_bytes.h"

namespace paceline {
namespace {

std::string random_name() { return "paceline-" + random_digits(2); }

}  // namespace

UnixAddress::UnixAddress(const std::string& name) {
  const std::size_t bytes = std::min(name.size(), kLongest);
  address_.sun_family = AF_UNIX;
  std::copy_n(name.begin(), bytes, address_.sun_path + 1);
  length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
}

UniqueFd unix_socket(int type) {
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!fd) throw system_error("cannot make a Unix socket", errno);
  return fd;
}

UnixListener::UnixListener(int type, int backlog) : name_(random_name()), socket_(unix_socket(type)) {
  const UnixAddress own(name_);
  if (::bind(socket_.get(), own.get(), own.length()) != 0 || ::listen(socket_.get(), backlog) != 0) {
    throw system_error(fmt::format("cannot listen on the Unix socket @{}", name_), errno);
  }
}

UniqueFd UnixListener::accept() const {
  for (;;) {
    UniqueFd caller(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (caller) return caller;
    if (errno != EINTR && errno != ECONNABORTED) throw system_error("cannot accept a peer", errno);
  }
}

// A caller that blocks has its place among those that wait; one that tries again and again has not.
UniqueFd call_unix_socket(const std::string& name, Deadline deadline) {
  UniqueFd socket = unix_socket(SOCK_SEQPACKET);
  const UnixAddress address(name);
  for (;;) {
    const auto left = std::clamp<Nanoseconds>(deadline.left(), std::chrono::milliseconds(1), std::chrono::hours(1));
    const auto left_us = std::chrono::duration_cast<std::chrono::microseconds>(left).count();
    const timeval patience{left_us / 1'000'000, left_us % 1'000'000};
    if (::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) != 0) {
      throw system_error("cannot limit the time of a call to a peer", errno);
    }
    if (::connect(socket.get(), address.get(), address.length()) == 0) return socket;
    if (errno == ECONNREFUSED || (errno == EAGAIN && deadline.passed())) {
      const int reason = errno;
      socket.reset();
      errno = reason;
      return socket;
    }
    if (errno != EINTR && errno != EAGAIN) throw system_error("cannot call a peer's Unix socket", errno);
  }
}

}  // namespace paceline
