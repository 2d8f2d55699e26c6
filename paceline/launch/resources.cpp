#include "paceline/launch/resources.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "paceline/base/error.h"
#include "paceline/net/tcp_socket.h"

namespace paceline::launch {

UniqueFd watch_process(pid_t pid) {
  UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!handle && errno != ESRCH) throw system_error("cannot watch the launcher's process", errno);
  return handle;
}

UniqueFd reserve_port(const SocketAddress& address, int& port) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) throw system_error("cannot create a socket for MASTER_PORT", errno);
  const int on = 1;
  const SocketAddress any = address.with_port(0);
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(fd.get(), any.get(), any.length()) != 0) {
    throw system_error("cannot find a free port for MASTER_PORT", errno);
  }
  port = local_address(fd.get()).port();
  return fd;
}

rlimit open_files_for(int workers) {
  // Here two pipes and a connection or two a worker; in a worker three for each peer of a communicator, and room for
  // the program's own and for a second communicator.
  const auto count = static_cast<rlim_t>(workers);
  const rlim_t launcher = 32 + 4 * count, worker = 32 + 6 * count, needed = std::max(launcher, worker);
  rlimit before{};
  if (::getrlimit(RLIMIT_NOFILE, &before) != 0) throw system_error("cannot read the limit of open files", errno);
  if (before.rlim_max < needed) {
    throw Error(
        Fault::TooFewDescriptors,
        fmt::format("{} workers need {} open files each, but the limit is {}: raise it with `ulimit -Hn {}`, in "
                    "/etc/security/limits.conf, or in the container's settings",
                    workers, needed, before.rlim_max, needed));
  }
  const rlimit raised{before.rlim_max, before.rlim_max};
  if (::setrlimit(RLIMIT_NOFILE, &raised) != 0) throw system_error("cannot raise the limit of open files", errno);
  return {std::max(before.rlim_cur, worker), before.rlim_max};
}

}  // namespace paceline::launch
