#include "paceline/comm/unix_socket.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "paceline/base/error.h"

namespace paceline {
namespace {

/// An abstract Unix address: '\0' and a name.
struct Address {
  sockaddr_un address{};
  socklen_t length = 0;

  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    const std::size_t most = sizeof address.sun_path - 1;
    std::copy_n(name.begin(), std::min(name.size(), most), address.sun_path + 1);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::min(name.size(), most));
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

UniqueFd unix_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) throw system_error("cannot make a Unix socket", errno);
  return fd;
}

std::string random_name() {
  std::array<std::uint64_t, 2> numbers{};
  if (::getrandom(numbers.data(), sizeof numbers, 0) != sizeof numbers) {
    throw system_error("cannot get random bytes", errno);
  }
  return fmt::format("paceline-{:016x}{:016x}", numbers[0], numbers[1]);
}

}  // namespace

UnixListener::UnixListener(int backlog) : name_(random_name()), socket_(unix_socket()) {
  const Address own(name_);
  if (::bind(socket_.get(), own.get(), own.length) != 0 || ::listen(socket_.get(), backlog) != 0) {
    throw system_error("cannot listen on a Unix socket", errno);
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
  UniqueFd socket = unix_socket();
  const Address address(name);
  for (;;) {
    if (::connect(socket.get(), address.get(), address.length) == 0) return socket;
    if (errno == ECONNREFUSED) return {};
    if (errno != EINTR) throw system_error("cannot call a peer's Unix socket", errno);
  }
}

}  // namespace paceline
