#include "paceline/comm/shm/group.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "paceline/base/error.h"
#include "paceline/base/random_bytes.h"
#include "paceline/base/topology.h"
#include "paceline/net/unix_socket.h"
#include "paceline/store/exchange.h"
#include "paceline/store/store.h"

namespace paceline {
namespace {

/// Sent both ways over a new link, with the segment's descriptor attached.
struct JoinRequest {
  std::uint64_t magic;
  std::uint64_t nonce;
  std::int32_t rank;
  std::int32_t world_size;
};

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

/// Nothing where the other end is a process of another user.
std::optional<PeerLink> link_to_peer(UniqueFd socket) {
  const int link = socket.get();
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(link, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    throw system_error("cannot identify a peer", errno);
  if (peer.uid != geteuid()) return std::nullopt;
  // Without one (an old kernel, a process of another namespace) the socket alone tells.
  return PeerLink{std::move(socket), UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)))};
}

/// A message that holds a JoinRequest and has room for one descriptor.
struct Envelope {
  iovec data;
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};

  explicit Envelope(JoinRequest& request) : data{&request, sizeof request} {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
  }
};

void send_join_request(int link, const JoinRequest& request, int segment_fd) {
  Envelope envelope(const_cast<JoinRequest&>(request));
  cmsghdr* attached = CMSG_FIRSTHDR(&envelope.message);
  attached->cmsg_level = SOL_SOCKET;
  attached->cmsg_type = SCM_RIGHTS;
  attached->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(attached), &segment_fd, sizeof segment_fd);
  if (sendmsg(link, &envelope.message, MSG_NOSIGNAL) != sizeof request)
    throw system_error("cannot pass shared memory to a peer", errno);
}

/// A message that is there already; nothing if it is no JoinRequest with a descriptor, or the end.
std::optional<std::pair<JoinRequest, UniqueFd>> receive_join_request(int link) {
  JoinRequest request{};
  Envelope envelope(request);
  const ssize_t got = recvmsg(link, &envelope.message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  UniqueFd segment;
  const cmsghdr* attached = got < 0 ? nullptr : CMSG_FIRSTHDR(&envelope.message);
  if (attached != nullptr && attached->cmsg_type == SCM_RIGHTS && attached->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(attached), sizeof fd);
    segment = UniqueFd(fd);
  }
  if (got != sizeof request || request.magic != RankControl::kMagic || !segment) return std::nullopt;
  return std::pair(request, std::move(segment));
}

/// Meets the other ranks of the host: calls lower ones, lets higher ones in.
class Meeting {
 public:
  Meeting(Store& store, const std::string& name, ShmGroup& group, Deadline deadline)
      : store_(store), name_(name), group_(group), deadline_(deadline) {}

  void call(int peer, const std::string& socket);
  /// All higher ranks. Who is of another user, or says something else than a rank does, is sent away; who says nothing
  /// keeps nobody waiting.
  void let_in(const UnixListener& listener);

 private:
  static constexpr std::size_t kAtOnce = 1024;

  JoinRequest own() const {
    return {RankControl::kMagic, group_.control(group_.rank).nonce, group_.rank, group_.world_size()};
  }
  bool poll(std::vector<pollfd>& polled);
  void join(PeerLink link, const JoinRequest& theirs, UniqueFd segment, bool expected);

  Store& store_;
  const std::string& name_;
  ShmGroup& group_;
  const Deadline deadline_;
};

}  // namespace

std::size_t ShmGroup::control_bytes() { return (sizeof(RankControl) + 4095) / 4096 * 4096; }

ShmGroup connect_shm_group(Store& store, const std::string& name, int rank, int world_size, Deadline deadline) {
  ShmGroup group;
  group.rank = rank;
  group.segments.resize(static_cast<std::size_t>(world_size));
  group.links.resize(static_cast<std::size_t>(world_size));
  group.segments[rank] = make_segment();

  const UnixListener listener(SOCK_SEQPACKET | SOCK_NONBLOCK, SOMAXCONN);
  const auto sockets = meet(store, "shm/" + name, name, rank, world_size, listener.name(), deadline);
  Meeting meeting(store, name, group, deadline);
  // Rank 0 only answers, so nobody waits in a circle.
  for (int peer = 0; peer < rank; ++peer) meeting.call(peer, sockets[static_cast<std::size_t>(peer)]);
  meeting.let_in(listener);
  return group;
}

namespace {

void Meeting::call(int peer, const std::string& socket) {
  UniqueFd connection = call_unix_socket(socket, deadline_);
  const bool full = !connection && errno == EAGAIN;
  auto link = connection ? link_to_peer(std::move(connection)) : std::nullopt;
  if (full) {
    throw Error(
        ErrorCode::Timeout,
        fmt::format("joining '{}': rank {} did not answer rank {} within the time limit: the queue of those that "
                    "call it is full. Is it stopped?",
                    name_, peer, group_.rank),
        group_.rank, peer);
  }
  if (!link) {
    throw Error(Fault::NeverJoined,
                fmt::format("joining '{}': rank {} has gone: nobody of this user listens where the store says that it "
                            "does. It has ended, or another communicator has used this name before",
                            name_, peer),
                group_.rank, peer);
  }
  send_join_request(link->socket.get(), own(), group_.segments[static_cast<std::size_t>(group_.rank)]->fd());
  std::vector<pollfd> polled{{link->socket.get(), POLLIN, 0}};
  while (!poll(polled)) {
    if (!deadline_.passed()) continue;
    throw Error(
        ErrorCode::Timeout,
        fmt::format("joining '{}': rank {} did not answer rank {} within the time limit", name_, peer, group_.rank),
        group_.rank, peer);
  }
  auto said = receive_join_request(link->socket.get());
  if (!said) {
    throw Error(Fault::NeverJoined,
                fmt::format("joining '{}': rank {} closed its connection to rank {}", name_, peer, group_.rank),
                group_.rank, peer);
  }
  const bool expected = said->first.rank == peer;
  join(*std::move(link), said->first, std::move(said->second), expected);
}

void Meeting::let_in(const UnixListener& listener) {
  std::vector<PeerLink> waiting;  // they have not said anything yet
  for (;;) {
    std::vector<int> missing;
    for (int peer = group_.rank + 1; peer < group_.world_size(); ++peer) {
      if (!group_.links[static_cast<std::size_t>(peer)].socket) missing.push_back(peer);
    }
    if (missing.empty()) return;
    if (deadline_.passed()) {
      throw Error(ErrorCode::Timeout,
                  fmt::format("joining '{}': rank {} did not call rank {} within the time limit", name_,
                              fmt::join(missing, ", "), group_.rank),
                  group_.rank, missing.front());
    }
    std::vector<pollfd> polled{{listener.fd(), POLLIN, 0}};
    for (const PeerLink& one : waiting) polled.push_back({one.socket.get(), POLLIN, 0});
    if (!poll(polled)) continue;
    std::vector<PeerLink> still;
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (polled[i + 1].revents == 0) {
        still.push_back(std::move(waiting[i]));
        continue;
      }
      auto said = receive_join_request(waiting[i].socket.get());
      if (!said) continue;
      try {
        send_join_request(waiting[i].socket.get(), own(), group_.segments[static_cast<std::size_t>(group_.rank)]->fd());
      } catch (const Error&) {
        continue;  // it has gone, and nobody knows that it was a rank
      }
      const bool expected = said->first.rank > group_.rank;
      join(std::move(waiting[i]), said->first, std::move(said->second), expected);
    }
    waiting = std::move(still);
    if (polled[0].revents == 0) continue;
    if (auto link = link_to_peer(listener.accept())) waiting.push_back(*std::move(link));
    if (waiting.size() > kAtOnce) waiting.erase(waiting.begin());
  }
}

// False if nothing happened for a while. Throws the job's failure.
bool Meeting::poll(std::vector<pollfd>& polled) {
  constexpr std::int64_t kLookUp_ms = 200;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_.left()).count();
  const int ready =
      ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, kLookUp_ms)));
  if (ready < 0 && errno != EINTR) throw system_error("cannot wait for a peer", errno);
  if (ready <= 0) store_.add(fmt::format("shm/{}/joining/{}", name_, group_.rank), 0);
  return ready > 0;
}

void Meeting::join(PeerLink link, const JoinRequest& theirs, UniqueFd segment, bool expected) {
  const int world_size = group_.world_size();
  if (!expected || theirs.world_size != world_size || theirs.rank < 0 || theirs.rank >= world_size ||
      group_.links[static_cast<std::size_t>(theirs.rank)].socket) {
    throw Error(ErrorCode::Mismatch,
                fmt::format("joining '{}': rank {} of {} came, but this is rank {} of {}; start all workers of a job "
                            "with one launcher",
                            name_, theirs.rank, theirs.world_size, group_.rank, world_size),
                group_.rank, theirs.rank);
  }
  auto& place = group_.segments[static_cast<std::size_t>(theirs.rank)];
  place = std::make_shared<Segment>(std::move(segment));
  // Sealed, so that it cannot be taken away while it is read (SIGBUS).
  const int seals = ::fcntl(place->fd(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || place->bytes() < ShmGroup::control_bytes() ||
      group_.control(theirs.rank).nonce != theirs.nonce) {
    throw Error(ErrorCode::Corrupt, fmt::format("rank {}'s shared memory is not what it says", theirs.rank),
                group_.rank, theirs.rank);
  }
  group_.links[static_cast<std::size_t>(theirs.rank)] = std::move(link);
}

}  // namespace

std::vector<std::shared_ptr<Segment>> make_thread_segments(int world_size) {
  std::vector<std::shared_ptr<Segment>> segments;
  segments.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) segments.push_back(make_segment());
  return segments;
}

}  // namespace paceline
