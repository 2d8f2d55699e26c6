#include "paceline/store/server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "paceline/base/background.h"
#include "paceline/base/unique_fd.h"
#include "paceline/net/acceptor.h"
#include "paceline/net/connect_authenticated.h"
#include "paceline/net/tcp_address.h"
#include "paceline/net/tcp_socket.h"
#include "paceline/net/unix_socket.h"
#include "paceline/store/protocol.h"
#include "paceline/store/server_state.h"

namespace paceline {
namespace {

constexpr std::size_t kMaxConnections = 4096;
constexpr std::size_t kReadBytes = std::size_t{64} << 10;
// With no descriptor left to accept() with, the listener would be ready at once, over and over.
constexpr int kAcceptPauseMs = 100;

constexpr std::int64_t kLongestWaitMs = std::int64_t{1000} * 3600 * 24 * 365;

struct Wait {
  std::string key;
  Deadline deadline;
};

struct Connection {
  UniqueFd fd;
  std::string in, out;
  std::optional<Wait> wait;  // its get() is not answered yet
  bool used = false;         // it did more than connect
  bool closed = false;
};

StoreMessage full() {
  return {.op = StoreOp::Refused, .value = fmt::format("the store is full ({} MiB)", StoreState::kMaxBytes >> 20)};
}

bool same_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid();
}

}  // namespace

class StoreServer::Impl {
 public:
  explicit Impl(const StoreOverTcp* tcp)
      : listener_(SOCK_STREAM | SOCK_NONBLOCK, SOMAXCONN), wake_(make_event()), early_(make_event()) {
    if (tcp != nullptr) listen_over_tcp(*tcp);
    thread_ = background_thread([this] { serve(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    signal_event(wake_);
    thread_.join();
  }

  const std::string& name() const { return listener_.name(); }
  const std::vector<std::string>& tcp_addresses() const { return tcp_addresses_; }
  int early_fd() const { return early_.get(); }

  /// Runs `change` on the state and lets the thread answer those who waited for it.
  template <class Change>
  void change(Change&& change) {
    {
      const std::lock_guard lock(mutex_);
      change(state_);
    }
    signal_event(wake_);
  }

  template <class Read>
  auto read(Read&& read) const {
    const std::lock_guard lock(mutex_);
    return read(state_);
  }

 private:
  void listen_over_tcp(const StoreOverTcp& tcp);
  void serve();
  bool receive(Connection& connection);
  void take_requests(Connection& connection);
  void handle(Connection& connection, const StoreMessage& request);
  void accept_all();
  void admit(Acceptor::Candidate candidate);
  void check_left(std::size_t known);
  void answer_waiting(Connection& connection);
  void reply(Connection& connection, const StoreMessage& message);
  void flush(Connection& connection);
  int poll_timeout() const;

  std::vector<std::string> tcp_addresses_;
  const UnixListener listener_;
  const UniqueFd wake_, early_;
  mutable std::mutex mutex_;
  StoreState state_;   // under mutex_
  bool stop_ = false;  // under mutex_
  // Of the thread.
  std::vector<Connection> connections_;
  std::optional<Acceptor> acceptor_;
  bool accept_paused_ = false;
  std::thread thread_;
};

void StoreServer::Impl::listen_over_tcp(const StoreOverTcp& tcp) {
  std::vector<UniqueFd> listeners;
  for (const SocketAddress& address : tcp.addresses) {
    listeners.push_back(listen_on(address, tcp.ports, SOMAXCONN));
    tcp_addresses_.push_back("tcp:" + local_address(listeners.back().get()).text());
  }
  acceptor_.emplace(std::move(listeners), tcp.secret);
}

void StoreServer::Impl::serve() {
  std::vector<pollfd> polled;
  std::size_t left_checked = 0;
  while (true) {
    // Only those that left before poll() looked: by then it also sees that their own connections are closed.
    std::size_t left_known = 0;
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      left_known = state_.left();
    }
    const bool accepts = connections_.size() < kMaxConnections && !accept_paused_;
    polled.assign({{wake_.get(), POLLIN, 0}, {listener_.fd(), static_cast<short>(accepts ? POLLIN : 0), 0}});
    for (const Connection& connection : connections_) {
      // A client has one request at a time, so while one is open only its end is news.
      const bool busy = connection.wait || !connection.out.empty();
      const int events = (busy ? POLLRDHUP : POLLIN) | (connection.out.empty() ? 0 : POLLOUT);
      polled.push_back({connection.fd.get(), static_cast<short>(events), 0});
    }
    if (acceptor_) acceptor_->add_polled(polled);
    const int timeout_ms = left_known > left_checked ? 0 : poll_timeout();
    accept_paused_ = false;
    if (::poll(polled.data(), polled.size(), timeout_ms) < 0) continue;  // EINTR, or out of memory for a moment

    eventfd_t ignored = 0;
    if (polled[0].revents != 0) ::eventfd_read(wake_.get(), &ignored);
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      const short events = polled[i + 2].revents;
      if ((events & (POLLERR | POLLHUP | POLLRDHUP)) != 0) {
        while (receive(connections_[i])) continue;  // its last words may be a failure report
        connections_[i].closed = true;
      } else if ((events & POLLIN) != 0) {
        receive(connections_[i]);
      }
    }
    std::erase_if(connections_, [](const Connection& connection) { return connection.closed; });
    check_left(left_known);
    left_checked = left_known;
    for (Connection& connection : connections_) {
      flush(connection);
      take_requests(connection);
    }
    if ((polled[1].revents & POLLIN) != 0) accept_all();
    if (acceptor_) {
      for (Acceptor::Candidate& candidate : acceptor_->handle_polled(polled)) admit(std::move(candidate));
    }
    std::erase_if(connections_, [](const Connection& connection) { return connection.closed; });
  }
}

// False when nothing was there.
bool StoreServer::Impl::receive(Connection& connection) {
  std::array<char, kReadBytes> bytes;
  const ssize_t count = ::recv(connection.fd.get(), bytes.data(), bytes.size(), 0);
  if (count <= 0) {
    connection.closed = count == 0 || (errno != EAGAIN && errno != EINTR);
    return false;
  }
  connection.in.append(bytes.data(), static_cast<std::size_t>(count));
  take_requests(connection);
  return !connection.closed;
}

void StoreServer::Impl::take_requests(Connection& connection) {
  try {
    while (!connection.closed && connection.out.size() < kMaxStoreFrame) {
      if (connection.wait) answer_waiting(connection);
      if (connection.wait) return;
      const std::optional<StoreMessage> request = take_message(connection.in);
      if (!request) return;
      handle(connection, *request);
    }
  } catch (const Error&) {
    connection.closed = true;  // Not one of ours: a client sees the end of its connection.
  }
}

void StoreServer::Impl::handle(Connection& connection, const StoreMessage& request) {
  if (request.op == StoreOp::Fail) {
    state_.report(failure_in(request));
    return reply(connection, {.op = StoreOp::Done});
  }
  connection.used = true;
  const auto& first = state_.first_failure();
  if (first && request.op != StoreOp::Get) return reply(connection, to_message(StoreOp::Failed, *first));
  switch (request.op) {
    case StoreOp::Set:
      return reply(connection, state_.set(request.key, request.value) ? StoreMessage{.op = StoreOp::Done} : full());
    case StoreOp::Add: {
      const std::optional<std::int64_t> sum = state_.add(request.key, request.number);
      return reply(connection, sum ? StoreMessage{.op = StoreOp::Done, .number = *sum} : full());
    }
    case StoreOp::Get: {
      const auto ms = std::clamp<std::int64_t>(request.number, 0, kLongestWaitMs);
      connection.wait = Wait{request.key, Deadline(std::chrono::milliseconds(ms))};
      return;
    }
    default: throw Error(ErrorCode::Corrupt, "a store client sent a reply");
  }
}

void StoreServer::Impl::answer_waiting(Connection& connection) {
  const Wait& wait = *connection.wait;
  StoreMessage answer;
  if (const std::string* value = state_.find(wait.key)) {
    answer = {.op = StoreOp::Found, .value = *value};
  } else if (const auto& first = state_.first_failure()) {
    answer = to_message(StoreOp::Failed, *first);
  } else if (wait.deadline.passed()) {
    answer = {.op = StoreOp::TimedOut};
  } else {
    return;
  }
  connection.wait.reset();
  reply(connection, answer);
}

void StoreServer::Impl::reply(Connection& connection, const StoreMessage& message) {
  connection.out += encode(message);
  flush(connection);
}

void StoreServer::Impl::flush(Connection& connection) {
  while (!connection.out.empty()) {
    const ssize_t count = ::send(connection.fd.get(), connection.out.data(), connection.out.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count < 0) {
      connection.closed = true;
      return;
    }
    connection.out.erase(0, static_cast<std::size_t>(count));
  }
}

void StoreServer::Impl::accept_all() {
  while (connections_.size() < kMaxConnections) {
    UniqueFd fd(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      accept_paused_ = errno != EAGAIN;
      return;
    }
    if (same_user(fd.get())) connections_.push_back({.fd = std::move(fd), .in = {}, .out = {}, .wait = {}});
  }
}

void StoreServer::Impl::admit(Acceptor::Candidate candidate) {
  if (candidate.introduction != introduction_for(Purpose::Store) || connections_.size() >= kMaxConnections) return;
  try {
    tune(candidate.socket.get(), kStoreSilence);
  } catch (const Error&) {
    return;  // it has gone already
  }
  connections_.push_back({.fd = std::move(candidate.socket), .in = {}, .out = {}, .wait = {}});
  const auto* answer = reinterpret_cast<const char*>(candidate.answer.data());
  connections_.back().out.assign(answer, candidate.answer.size());
  flush(connections_.back());
}

void StoreServer::Impl::check_left(std::size_t known) {
  if (known == 0 || state_.first_failure()) return;
  const auto used = [](const Connection& connection) { return connection.used; };
  if (std::none_of(connections_.begin(), connections_.end(), used)) return;
  state_.fail_left();
  signal_event(early_);
}

int StoreServer::Impl::poll_timeout() const {
  auto nearest = std::chrono::milliseconds(accept_paused_ ? kAcceptPauseMs : 3'600'000);
  for (const Connection& connection : connections_) {
    if (!connection.wait) continue;
    // Rounded up, or the last millisecond would be spent spinning.
    nearest = std::min(nearest, std::chrono::ceil<std::chrono::milliseconds>(connection.wait->deadline.left()));
  }
  if (const auto due = acceptor_ ? acceptor_->due() : std::nullopt) {
    nearest = std::min(nearest, std::chrono::ceil<std::chrono::milliseconds>(*due));
  }
  return static_cast<int>(std::max<std::int64_t>(nearest.count(), 0));
}

StoreServer::StoreServer() : impl_(std::make_unique<Impl>(nullptr)) {}
StoreServer::StoreServer(const StoreOverTcp& tcp) : impl_(std::make_unique<Impl>(&tcp)) {}
StoreServer::~StoreServer() = default;

std::string StoreServer::address() const { return "unix:@" + impl_->name(); }

const std::vector<std::string>& StoreServer::tcp_addresses() const { return impl_->tcp_addresses(); }

void StoreServer::set(std::string_view key, std::string_view value) {
  bool done = false;
  impl_->change([&](StoreState& state) { done = state.set(key, value); });
  if (!done) throw Error(ErrorCode::System, "the store is full");
}

void StoreServer::fail(int rank, const Error& why) {
  impl_->change([&](StoreState& state) { state.report({rank, why.label(), why.message(), why.cause()}); });
}

void StoreServer::left(int rank) {
  impl_->change([&](StoreState& state) { state.leave(rank); });
}

std::optional<StoreFailure> StoreServer::left_too_early() const {
  return impl_->read([](const StoreState& state) { return state.left_too_early(); });
}

int StoreServer::left_too_early_fd() const { return impl_->early_fd(); }

std::optional<StoreFailure> StoreServer::first_failure() const {
  return impl_->read([](const StoreState& state) { return state.first_failure(); });
}

std::map<int, StoreFailure> StoreServer::failures() const {
  return impl_->read([](const StoreState& state) { return state.failures(); });
}

}  // namespace paceline
