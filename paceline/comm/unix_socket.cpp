#include "paceline/comm/unix_socket.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "paceline/base/error.h"

namespace paceline {
namespace {

std::string random_name() {
  std::array<std::uint64_t, 2> numbers{};
  if (::getrandom(numbers.data(), sizeof numbers, 0) != sizeof numbers) {
    throw system_error("cannot get random bytes", errno);
  }
  return fmt::format("paceline-{:016x}{:016x}", numbers[0], numbers[1]);
}

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

UniqueFd call_unix_socket(const std::string& name) {
  UniqueFd socket = unix_socket(SOCK_SEQPACKET);
  const UnixAddress address(name);
  for (;;) {
    if (::connect(socket.get(), address.get(), address.length()) == 0) return socket;
    if (errno == ECONNREFUSED) return {};
    if (errno != EINTR) throw system_error("cannot call a peer's Unix socket", errno);
  }
}

}  // namespace paceline
