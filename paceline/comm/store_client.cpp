#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "paceline/base/unique_fd.h"
#include "paceline/comm/store.h"
#include "paceline/comm/store_failure.h"
#include "paceline/comm/store_protocol.h"

namespace paceline {
namespace {

using std::chrono::milliseconds;

// How long the server may take for what it can answer at once. Long, since the machine may be overloaded.
constexpr std::chrono::seconds kAnswerTime{30};
// A rank that reports its own failure has better things to do than to wait.
constexpr std::chrono::seconds kReportTime{2};
constexpr std::string_view kPrefix = "unix:@";

/// Waits until the socket is ready for `events`; false at the deadline.
bool wait_ready(int fd, short events, Deadline deadline) {
  while (true) {
    const std::int64_t left = std::chrono::ceil<milliseconds>(deadline.left()).count();
    pollfd polled{fd, events, 0};
    const int timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max()));
    const int ready = ::poll(&polled, 1, timeout);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw system_error("cannot wait for the store", errno);
    if (deadline.passed()) return false;
  }
}

class StoreClient final : public Store {
 public:
  StoreClient(std::string address, Deadline deadline) : address_(std::move(address)) { give_back(connect(deadline)); }

  void set(std::string_view key, std::string_view value) override {
    ask({.op = StoreOp::Set, .key = std::string(key), .value = std::string(value)}, Deadline(kAnswerTime));
  }

  std::string get(std::string_view key, Deadline deadline) override {
    // The server keeps the time, so that the connection is in step again after a timeout.
    const Nanoseconds left = std::max(deadline.left(), Nanoseconds::zero());
    const std::int64_t left_ms = std::chrono::ceil<milliseconds>(left).count();
    const StoreMessage reply = ask({.op = StoreOp::Get, .number = left_ms, .key = std::string(key)},
                                   Deadline(std::min<Nanoseconds>(left, std::chrono::hours(24 * 365)) + kAnswerTime));
    if (reply.op == StoreOp::TimedOut) throw store_timeout(key, left);
    return reply.value;
  }

  std::int64_t add(std::string_view key, std::int64_t delta) override {
    return ask({.op = StoreOp::Add, .number = delta, .key = std::string(key)}, Deadline(kAnswerTime)).number;
  }

  void fail(int rank, std::string_view code, std::string_view message) noexcept override {
    constexpr std::size_t kLongest = 4096;
    try {
      // The reply says that the report is in before this process ends.
      ask({.op = StoreOp::Fail,
           .number = rank,
           .key = std::string(code.substr(0, kLongest)),
           .value = std::string(message.substr(0, kLongest))},
          Deadline(kReportTime));
    } catch (const std::exception&) {
      // As the interface says: the caller has an error of its own in hand, and the launcher sees how it ends.
    }
  }

 private:
  StoreMessage ask(const StoreMessage& request, Deadline deadline);
  UniqueFd take_connection(Deadline deadline);
  UniqueFd connect(Deadline deadline) const;
  void send(int fd, const std::string& bytes, Deadline deadline) const;
  StoreMessage receive(int fd, Deadline deadline) const;
  void give_back(UniqueFd connection);
  Error lost(int errno_value) const;
  Error silent() const;

  const std::string address_;
  std::mutex mutex_;
  // A connection carries one request at a time. Threads that call at the same time, say fail() during a get(), each
  // get their own.
  std::vector<UniqueFd> idle_;
};

StoreMessage StoreClient::ask(const StoreMessage& request, Deadline deadline) {
  const std::string bytes = encode(request);
  UniqueFd connection = take_connection(deadline);
  send(connection.get(), bytes, deadline);
  StoreMessage reply = receive(connection.get(), deadline);
  give_back(std::move(connection));
  if (reply.op == StoreOp::Failed) throw to_error({static_cast<int>(reply.number), reply.key, reply.value});
  if (reply.op == StoreOp::Refused) {
    throw Error(ErrorCode::System, fmt::format("the store refused \"{}\": {}", request.key, reply.value));
  }
  return reply;
}

UniqueFd StoreClient::take_connection(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      UniqueFd connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  return connect(deadline);
}

UniqueFd StoreClient::connect(Deadline deadline) const {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  const std::string name = address_.substr(kPrefix.size());
  std::memcpy(to.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());

  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw system_error("cannot create a socket for the store", errno);
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), length) != 0) {
    if (errno == ECONNREFUSED) {
      throw Error(ErrorCode::System, fmt::format("nobody serves the store at {}: the launcher has ended", address_));
    }
    // EAGAIN: too many wait to be accepted. There is nothing to poll for.
    if (errno != EAGAIN && errno != EINTR)
      throw system_error(fmt::format("cannot reach the store at {}", address_), errno);
    if (deadline.passed()) throw silent();
    ::poll(nullptr, 0, 1);
  }
  return fd;
}

void StoreClient::send(int fd, const std::string& bytes, Deadline deadline) const {
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count >= 0) {
      sent += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      if (!wait_ready(fd, POLLOUT, deadline)) throw silent();
    } else if (errno != EINTR) {
      throw lost(errno);
    }
  }
}

StoreMessage StoreClient::receive(int fd, Deadline deadline) const {
  std::string received;
  std::array<char, 4096> bytes;
  while (true) {
    if (std::optional<StoreMessage> reply = take_message(received)) return *std::move(reply);
    const ssize_t count = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (count > 0) {
      received.append(bytes.data(), static_cast<std::size_t>(count));
    } else if (count == 0) {
      throw lost(0);
    } else if (errno == EAGAIN) {
      if (!wait_ready(fd, POLLIN, deadline)) throw silent();
    } else if (errno != EINTR) {
      throw lost(errno);
    }
  }
}

void StoreClient::give_back(UniqueFd connection) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(connection));
}

Error StoreClient::lost(int errno_value) const {
  const std::string doing = fmt::format("lost the store at {} (has the launcher ended?)", address_);
  return errno_value == 0 ? Error(ErrorCode::System, doing) : system_error(doing, errno_value);
}

Error StoreClient::silent() const {
  return Error(ErrorCode::System,
               fmt::format("the store at {} does not answer: its launcher is stopped or stuck", address_));
}

}  // namespace

std::shared_ptr<Store> connect_store(const std::string& address, Deadline deadline) {
  const std::size_t name_length = address.size() - std::min(address.size(), kPrefix.size());
  if (!address.starts_with(kPrefix) || name_length == 0 || name_length > sizeof(sockaddr_un::sun_path) - 1) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("\"{}\" is no store address; `paceline run` gives one as unix:@NAME", address));
  }
  return std::make_shared<StoreClient>(address, deadline);
}

}  // namespace paceline
