#include "paceline/comm/shm_group.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "paceline/base/error.h"
#include "paceline/base/topology.h"
#include "paceline/comm/store_meeting.h"
#include "paceline/comm/unix_socket.h"

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
    throw Error(Fault::NeverJoined, "a peer closed its connection while joining");
  }
  return {hello, std::move(segment)};
}

}  // namespace

std::size_t ShmGroup::control_bytes() { return (sizeof(RankControl) + 4095) / 4096 * 4096; }

ShmGroup connect_shm_group(Store& store, const std::string& name, int rank, int world_size, Deadline deadline) {
  ShmGroup group;
  group.rank = rank;
  group.segments.resize(static_cast<std::size_t>(world_size));
  group.links.resize(static_cast<std::size_t>(world_size));
  group.segments[rank] = make_segment();

  const UnixListener listener(SOCK_SEQPACKET, world_size);
  const auto sockets = meet(store, "shm/" + name, name, rank, world_size, listener.name(), deadline);

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
    UniqueFd socket = call_unix_socket(sockets[peer]);
    if (!socket) {
      throw Error(Fault::NeverJoined, fmt::format("joining '{}': rank {} has gone", name, peer), rank, peer);
    }
    PeerLink link = link_to_peer(std::move(socket));
    send_hello(link.socket.get(), hello, group.segments[rank]->fd());
    auto [theirs, segment] = receive_hello(link.socket.get(), deadline);
    join(std::move(link), theirs, std::move(segment));
  }
  for (int answered = rank + 1; answered < world_size; ++answered) {
    wait_readable(listener.fd(), deadline, fmt::format("joining '{}': waiting for higher ranks", name));
    PeerLink link = link_to_peer(listener.accept());
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
