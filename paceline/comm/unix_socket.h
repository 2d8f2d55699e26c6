#pragma once

#include <string>

#include "paceline/base/unique_fd.h"

namespace paceline {

/// Listens on a Unix socket (SOCK_SEQPACKET) with a random name in the abstract namespace: nothing lies in the file
/// system, and only processes of this kernel and network namespace reach it.
class UnixListener {
 public:
  /// Throws System.
  explicit UnixListener(int backlog);
  const std::string& name() const { return name_; }
  int fd() const { return socket_.get(); }
  /// The next caller. Blocks; throws System.
  UniqueFd accept() const;

 private:
  std::string name_;
  UniqueFd socket_;
};

/// Calls the listener of this name; nothing where there is none. Throws System if the call cannot be made for another
/// reason.
UniqueFd call_unix_socket(const std::string& name);

}  // namespace paceline
