#include "channel.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace paceline_benchmark {

Channel::Channel(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) throw std::runtime_error("the channel's name is too long");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot connect to " + path);
  }
}

Channel::~Channel() { ::close(socket_); }

void Channel::send(const std::string& message) const {
  if (::send(socket_, message.data(), message.size(), MSG_NOSIGNAL) < 0) {
    throw std::system_error(errno, std::generic_category(), "cannot answer the benchmark");
  }
}

std::string Channel::receive() const {
  std::array<char, 128> buffer{};
  ssize_t size = 0;
  do size = ::recv(socket_, buffer.data(), buffer.size(), 0);
  while (size < 0 && errno == EINTR);
  if (size < 0) throw std::system_error(errno, std::generic_category(), "cannot hear the benchmark");
  if (size == 0) throw std::runtime_error("the benchmark went away");
  return {buffer.data(), static_cast<std::size_t>(size)};
}

}  // namespace paceline_benchmark
