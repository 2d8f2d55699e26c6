#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <string>

#include "paceline/base/clock.h"
#include "paceline/base/unique_fd.h"

namespace paceline {

// Unix sockets with a name in the abstract namespace: nothing lies in the file system, and only processes of this
// kernel and network namespace reach them. `type` is SOCK_STREAM or SOCK_SEQPACKET, with SOCK_NONBLOCK or without.

/// The address of a name, which must not be longer than kLongest.
class UnixAddress {
 public:
  static constexpr std::size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;

  explicit UnixAddress(const std::string& name);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t length() const { return length_; }

 private:
  sockaddr_un address_{};
  socklen_t length_;
};

/// Throws System.
UniqueFd unix_socket(int type);

/// Listens under a random name.
class UnixListener {
 public:
  /// Throws System.
  UnixListener(int type, int backlog);
  const std::string& name() const { return name_; }
  int fd() const { return socket_.get(); }
  /// The next caller. Blocks; throws System.
  UniqueFd accept() const;

 private:
  std::string name_;
  UniqueFd socket_;
};

/// Calls the SOCK_SEQPACKET listener of this name. Nothing where there is none (errno is ECONNREFUSED), or its queue
/// stays full until the deadline (EAGAIN). Throws System if the call cannot be made for another reason.
UniqueFd call_unix_socket(const std::string& name, Deadline deadline);

}  // namespace paceline
