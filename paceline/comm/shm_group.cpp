#include "paceline/comm/shm_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "paceline/base/error.h"
#include "paceline/base/topology.h"
#include "paceline/comm/store.h"

namespace paceline {
namespace {

/// Sent both ways over a new link, with the segment's descriptor attached.
struct Hello {
  std::uint64_t magic;
  std::uint64_t nonce;
  std::int32_t rank;
  std::int32_t world_size;
};

std::uint64_t random_number() {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) throw system_error("cannot get random bytes", errno);
  return number;
}

std::shared_ptr<Segment> make_segment() {
  const CpuAllowance cpus = cpu_allowance();
  auto segment = std::make_shared<Segment>(ShmGroup::control_bytes(), node_of(cpus, numa_nodes()));
  auto& control = *new (segment->data()) RankControl{};
  control.magic = RankControl::kMagic;
  control.nonce = random_number();
  control.pid = getpid();
  control.cpus = cpus;
  return segment;
}

/// An abstract Unix address: '\0' and a name, nothing in the file system.
struct Address {
  sockaddr_un address{};
  socklen_t length = 0;

  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), address.sun_path + 1);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

UniqueFd unix_socket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) throw system_error("cannot make a Unix socket", errno);
  return fd;
}

void wait_readable(int fd, Deadline deadline, const std::string& doing) {
  pollfd entry{fd, POLLIN, 0};
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left()).count();
    if (left <= 0) throw Error(ErrorCode::Timeout, doing + ": no answer within the time limit");
    const int ready = poll(&entry, 1, static_cast<int>(std::min<long>(left + 1, 1000)));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) throw system_error(doing, errno);
  }
}

// Checks that the other end is a process of this user.
PeerLink link_to_peer(UniqueFd socket) {
  const int link = socket.get();
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(link, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    throw system_error("cannot identify a peer", errno);
  if (peer.uid != geteuid()) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("a process of user {} tried to join this job", peer.uid));
  }
  // Without one (an old kernel, a process of another namespace) the socket alone tells.
  return {std::move(socket), UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)))};
}

/// A message that holds a Hello and has room for one descriptor.
struct Envelope {
  iovec data;
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};

  explicit Envelope(Hello& hello) : data{&hello, sizeof hello} {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
  }
};

void send_hello(int link, const Hello& hello, int segment_fd) {
  Envelope envelope(const_cast<Hello&>(hello));
  cmsghdr* attached = CMSG_FIRSTHDR(&envelope.message);
  attached->cmsg_level = SOL_SOCKET;
  attached->cmsg_type = SCM_RIGHTS;
  attached->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(attached), &segment_fd, sizeof segment_fd);
  if (sendmsg(link, &envelope.message, MSG_NOSIGNAL) != sizeof hello)
    throw system_error("cannot pass shared memory to a peer", errno);
}

std::pair<Hello, UniqueFd> receive_hello(int link, Deadline deadline) {
  wait_readable(link, deadline, "waiting for a peer's shared memory");
  Hello hello{};
  Envelope envelope(hello);
  const ssize_t got = recvmsg(link, &envelope.message, MSG_CMSG_CLOEXEC);
  if (got < 0) throw system_error("cannot receive a peer's shared memory", errno);
  UniqueFd segment;
  const cmsghdr* attached = CMSG_FIRSTHDR(&envelope.message);
  if (attached != nullptr && attached->cmsg_type == SCM_RIGHTS && attached->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(attached), sizeof fd);
    segment = UniqueFd(fd);
  }
  if (got != sizeof hello || hello.magic != RankControl::kMagic || !segment) {
    throw Error(ErrorCode::PeerLost, "a peer closed its connection while joining");
  }
  return {hello, std::move(segment)};
}

std::string address_key(const std::string& name, int rank) { return fmt::format("shm/{}/{}", name, rank); }

/// Where a rank listens, and of how many it thinks it is one.
struct Whereabouts {
  std::string socket_name;
  int world_size = 0;
};

Whereabouts decode(const std::string& text) {
  Whereabouts result;
  std::istringstream words(text);
  words >> result.socket_name >> result.world_size;
  return result;
}

// Waits until all ranks have published where they listen; a timeout names all that have not.
std::vector<std::string> gather_addresses(Store& store, const std::string& name, int rank, int world_size,
                                          Deadline deadline) {
  std::vector<std::string> addresses;
  std::vector<int> missing;
  for (int peer = 0; peer < world_size; ++peer) {
    Whereabouts theirs;
    try {
      theirs = decode(store.get(address_key(name, peer), missing.empty() ? deadline : Deadline(Nanoseconds(0))));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Timeout) throw;
      missing.push_back(peer);
      continue;
    }
    if (theirs.world_size != world_size) {
      throw Error(
          ErrorCode::Mismatch,
          fmt::format("joining '{}': rank {} is one of {} ranks, but rank {} is one of {}; start all workers of "
                      "a job with one launcher",
                      name, rank, world_size, peer, theirs.world_size),
          rank, peer);
    }
    addresses.push_back(theirs.socket_name);
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::Timeout,
                fmt::format("joining '{}': rank {} of {} did not come within the time limit; were all workers started, "
                            "and do all of them create this communicator?",
                            name, fmt::join(missing, ", "), world_size),
                Error::kNoRank, missing.front());
  }
  return addresses;
}

}  // namespace

std::size_t ShmGroup::control_bytes() { return (sizeof(RankControl) + 4095) / 4096 * 4096; }

ShmGroup connect_shm_group(Store& store, const std::string& name, int rank, int world_size, Deadline deadline) {
  ShmGroup group;
  group.rank = rank;
  group.segments.resize(static_cast<std::size_t>(world_size));
  group.links.resize(static_cast<std::size_t>(world_size));
  group.segments[rank] = make_segment();

  const std::string socket_name = fmt::format("paceline-{:016x}{:016x}", random_number(), random_number());
  const UniqueFd listener = unix_socket();
  const Address own(socket_name);
  if (bind(listener.get(), own.get(), own.length) != 0 || listen(listener.get(), world_size) != 0) {
    throw system_error("cannot listen on a Unix socket", errno);
  }
  store.set(address_key(name, rank), fmt::format("{} {}", socket_name, world_size));
  const auto addresses = gather_addresses(store, name, rank, world_size, deadline);

  const Hello hello{RankControl::kMagic, group.control(rank).nonce, rank, world_size};
  const auto join = [&](PeerLink link, const Hello& theirs, UniqueFd segment) {
    if (theirs.world_size != world_size || theirs.rank < 0 || theirs.rank >= world_size ||
        group.links[theirs.rank].socket) {
      throw Error(ErrorCode::Mismatch,
                  fmt::format("joining '{}': rank {} of {} came, but this is rank {} of {}; start all workers of a job "
                              "with one launcher",
                              name, theirs.rank, theirs.world_size, rank, world_size),
                  rank, theirs.rank);
    }
    group.segments[theirs.rank] = std::make_shared<Segment>(std::move(segment));
    if (group.control(theirs.rank).nonce != theirs.nonce) {
      throw Error(ErrorCode::Corrupt, fmt::format("rank {}'s shared memory is not what it says", theirs.rank), rank,
                  theirs.rank);
    }
    group.links[theirs.rank] = std::move(link);
  };

  // Lower ranks are called, higher ranks call; rank 0 only answers, so nobody waits in a circle.
  for (int peer = 0; peer < rank; ++peer) {
    UniqueFd socket = unix_socket();
    const Address address(addresses[peer]);
    if (connect(socket.get(), address.get(), address.length) != 0) {
      throw Error(ErrorCode::PeerLost, fmt::format("joining '{}': rank {} has gone", name, peer), rank, peer);
    }
    PeerLink link = link_to_peer(std::move(socket));
    send_hello(link.socket.get(), hello, group.segments[rank]->fd());
    auto [theirs, segment] = receive_hello(link.socket.get(), deadline);
    join(std::move(link), theirs, std::move(segment));
  }
  for (int answered = rank + 1; answered < world_size; ++answered) {
    wait_readable(listener.get(), deadline, fmt::format("joining '{}': waiting for higher ranks", name));
    UniqueFd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) throw system_error("cannot accept a peer", errno);
    PeerLink link = link_to_peer(std::move(socket));
    auto [theirs, segment] = receive_hello(link.socket.get(), deadline);
    send_hello(link.socket.get(), hello, group.segments[rank]->fd());
    join(std::move(link), theirs, std::move(segment));
  }
  return group;
}

std::vector<std::shared_ptr<Segment>> make_thread_segments(int world_size) {
  std::vector<std::shared_ptr<Segment>> segments;
  segments.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) segments.push_back(make_segment());
  return segments;
}

}  // namespace paceline
