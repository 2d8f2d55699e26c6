#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "paceline/base/unique_fd.h"
#include "paceline/store/failure.h"
#include "paceline/store/protocol.h"
#include "paceline/store/store.h"
#include "paceline/store/store_connector.h"

namespace paceline {
namespace {

using std::chrono::milliseconds;

// How long the server may take for what it can answer at once. Long, since the machine may be overloaded.
constexpr std::chrono::seconds kAnswerTime{30};
// A rank that reports its own failure has better things to do than to wait.
constexpr std::chrono::seconds kReportTime{2};

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
  StoreClient(std::string address, const std::optional<Secret>& secret, Deadline deadline)
      : address_(std::move(address)), connect_(store_connector(address_, secret)) {
    give_back(connect_(deadline));
  }

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

  void fail(int rank, const Error& why) noexcept override {
    constexpr std::size_t kLongest = 4096;
    try {
      // The reply says that the report is in before this process ends.
      ask(to_message(StoreOp::Fail, {rank, why.label(), why.message().substr(0, kLongest), why.cause()}),
          Deadline(kReportTime));
    } catch (const std::exception&) {
      // As the interface says: the caller has an error of its own in hand, and the launcher sees how it ends.
    }
  }

 private:
  StoreMessage ask(const StoreMessage& request, Deadline deadline);
  UniqueFd take_connection(Deadline deadline);
  void send(int fd, const std::string& bytes, Deadline deadline) const;
  StoreMessage receive(int fd, Deadline deadline) const;
  void give_back(UniqueFd connection);
  Error lost(int errno_value) const;

  const std::string address_;
  const StoreConnector connect_;
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
  if (reply.op == StoreOp::Failed) throw to_error(failure_in(reply));
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
  return connect_(deadline);
}

void StoreClient::send(int fd, const std::string& bytes, Deadline deadline) const {
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count >= 0) {
      sent += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      if (!wait_ready(fd, POLLOUT, deadline)) throw store_silent(address_);
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
      if (!wait_ready(fd, POLLIN, deadline)) throw store_silent(address_);
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

}  // namespace

std::shared_ptr<Store> connect_store(const std::string& address, Deadline deadline,
                                     const std::optional<Secret>& secret) {
  return std::make_shared<StoreClient>(address, secret, deadline);
}

}  // namespace paceline
