// A relay in the way of TCP connections between ranks, which does harm at a chosen byte.
#pragma once

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "paceline/net/tcp_socket.h"
#include "paceline/store/store.h"

namespace paceline::test {

enum class Harm {
  None,
  Flip,       ///< One bit of the byte.
  Cut,        ///< The connection ends in front of it.
  Swallow,    ///< It, and all that follow in this direction, never arrive; the connection stays open.
  Delay,      ///< It, and all that follow, arrive later.
  Duplicate,  ///< It comes twice.
};

inline const char* to_string(Harm harm) {
  constexpr std::array names{"None", "Flip", "Cut", "Swallow", "Delay", "Duplicate"};
  return names[static_cast<std::size_t>(harm)];
}

/// What happens to the first connection that goes through, at which byte of one direction.
struct Mischief {
  Harm harm = Harm::None;
  bool to_acceptor = true;
  std::size_t byte = 0;
  unsigned bit = 0;
  Nanoseconds delay{0};
};

class Relay {
 public:
  Relay(SocketAddress target, Mischief mischief)
      : target_(std::move(target)),
        mischief_(mischief),
        listener_(listen_on(SocketAddress("127.0.0.1", 0), {}, 16)),
        stop_(::eventfd(0, EFD_CLOEXEC)),
        thread_([this] { run(); }) {}
  ~Relay() {
    const std::uint64_t one = 1;
    (void)!::write(stop_.get(), &one, sizeof one);
    thread_.join();
  }

  SocketAddress address() const { return local_address(listener_.get()); }

 private:
  static constexpr std::size_t kMost = std::size_t{1} << 20;

  struct Direction {
    int from = -1, to = -1;
    bool harmful = false;
    std::size_t seen = 0;
    std::vector<std::byte> waiting = {};
    Nanoseconds not_before{0};
    bool swallows = false, ended = false;
  };
  struct Connection {
    UniqueFd caller, acceptor;
    std::array<Direction, 2> directions;
    bool cut = false;
  };

  void run() {
    for (;;) {
      std::vector<pollfd> polled{{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      int patience_ms = -1;
      for (const Connection& connection : connections_) {
        for (const Direction& direction : connection.directions) {
          const bool held = direction.not_before > now();
          if (held) patience_ms = 1;
          if (!direction.ended && direction.waiting.size() < kMost) polled.push_back({direction.from, POLLIN, 0});
          if (!held && !direction.waiting.empty()) polled.push_back({direction.to, POLLOUT, 0});
        }
      }
      ::poll(polled.data(), polled.size(), patience_ms);
      if (polled[0].revents != 0) return;
      if (polled[1].revents != 0) accept();
      for (Connection& connection : connections_) {
        for (Direction& direction : connection.directions) {
          if (!connection.cut) move(connection, direction);
        }
      }
      std::erase_if(connections_, [](const Connection& c) {
        return c.cut || (c.directions[0].ended && c.directions[1].ended && c.directions[0].waiting.empty() &&
                         c.directions[1].waiting.empty());
      });
    }
  }

  void accept() {
    UniqueFd caller(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    std::string why;
    UniqueFd acceptor = connect_to(target_, Deadline(std::chrono::seconds(10)), why);
    if (!caller || !acceptor) return;
    Connection connection{.caller = std::move(caller), .acceptor = std::move(acceptor), .directions = {}};
    const bool first = !std::exchange(used_, true);
    connection.directions[0] = {
        .from = connection.caller.get(), .to = connection.acceptor.get(), .harmful = first && mischief_.to_acceptor};
    connection.directions[1] = {
        .from = connection.acceptor.get(), .to = connection.caller.get(), .harmful = first && !mischief_.to_acceptor};
    connections_.push_back(std::move(connection));
  }

  void move(Connection& connection, Direction& direction) {
    std::array<std::byte, 65536> chunk;
    if (!direction.ended && direction.waiting.size() < kMost) {
      const ssize_t bytes = ::recv(direction.from, chunk.data(), chunk.size(), MSG_DONTWAIT);
      if (bytes == 0 || (bytes < 0 && errno != EAGAIN)) direction.ended = true;
      if (bytes > 0) take(connection, direction, std::span(chunk).first(static_cast<std::size_t>(bytes)));
    }
    if (connection.cut || direction.not_before > now()) return;
    if (!direction.waiting.empty()) {
      const ssize_t bytes =
          ::send(direction.to, direction.waiting.data(), direction.waiting.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (bytes > 0) direction.waiting.erase(direction.waiting.begin(), direction.waiting.begin() + bytes);
      else if (errno != EAGAIN) connection.cut = true;
    }
    if (direction.ended && direction.waiting.empty()) ::shutdown(direction.to, SHUT_WR);
  }

  void take(Connection& connection, Direction& direction, std::span<std::byte> data) {
    const std::size_t begin = direction.seen;
    direction.seen += data.size();
    const bool here = direction.harmful && mischief_.byte >= begin && mischief_.byte < direction.seen;
    const std::size_t at = mischief_.byte - begin;
    if (here) {
      switch (mischief_.harm) {
        case Harm::None: break;
        case Harm::Flip: data[at] ^= std::byte{1} << mischief_.bit; break;
        case Harm::Cut: connection.cut = true; break;
        case Harm::Swallow:
          direction.swallows = true;
          direction.waiting.insert(direction.waiting.end(), data.begin(),
                                   data.begin() + static_cast<std::ptrdiff_t>(at));
          break;
        case Harm::Delay: direction.not_before = now() + mischief_.delay; break;
        case Harm::Duplicate:
          direction.waiting.insert(direction.waiting.end(), data.begin(),
                                   data.begin() + static_cast<std::ptrdiff_t>(at) + 1);
          data = data.subspan(at);
          break;
      }
    }
    if (!direction.swallows) direction.waiting.insert(direction.waiting.end(), data.begin(), data.end());
  }

  const SocketAddress target_;
  const Mischief mischief_;
  UniqueFd listener_, stop_;
  bool used_ = false;
  std::list<Connection> connections_;
  std::thread thread_;
};

/// A store that sends whoever wants to reach `rank` through a relay.
class RelayedStore final : public Store {
 public:
  RelayedStore(int rank, Mischief mischief) : suffix_(fmt::format("/address/{}", rank)), mischief_(mischief) {}

  void set(std::string_view key, std::string_view value) override { store_->set(key, value); }
  std::string get(std::string_view key, Deadline deadline) override {
    std::string value = store_->get(key, deadline);
    if (!key.ends_with(suffix_)) return value;
    std::istringstream words(value);
    std::string world_size, host, pid, address;
    std::uint16_t port = 0;
    words >> world_size >> host >> pid >> address >> port;
    const std::lock_guard lock(mutex_);
    if (!relay_) relay_ = std::make_unique<Relay>(SocketAddress(address, port), mischief_);
    return fmt::format("{} {} {} {} {}", world_size, host, pid, relay_->address().host(), relay_->address().port());
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override { return store_->add(key, delta); }
  void fail(int rank, const Error& why) noexcept override { store_->fail(rank, why); }

 private:
  const std::shared_ptr<Store> store_ = make_memory_store();
  const std::string suffix_;
  const Mischief mischief_;
  std::mutex mutex_;
  std::unique_ptr<Relay> relay_;
};

}  // namespace paceline::test
