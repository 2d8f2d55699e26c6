#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/base/unique_fd.h"
#include "paceline/net/secret.h"
#include "paceline/net/tcp_address.h"

namespace paceline::launch {

/// Looks for node 0 at the rendezvous, again and again, on a thread of its own.
class Reconnector {
 public:
  Reconnector(std::vector<SocketAddress> addresses, const Secret& secret, Deadline deadline);
  ~Reconnector();
  Reconnector(const Reconnector&) = delete;
  Reconnector& operator=(const Reconnector&) = delete;

  struct Result {
    UniqueFd socket;            ///< Both sides have proved the secret; or empty:
    bool other_secret = false;  ///< it has another secret, or
    std::string why;            ///< nobody was there until the deadline.
  };
  /// Readable once there is a result.
  int fd() const { return done_.get(); }
  std::optional<Result> take();
  /// Why it has not worked yet.
  std::string last_reason() const;

 private:
  void connect();
  void finish(Result result);

  const std::vector<SocketAddress> addresses_;
  const Secret secret_;
  const Deadline deadline_;
  const UniqueFd done_, stop_;
  mutable std::mutex mutex_;
  std::string last_reason_;
  std::optional<Result> result_;
  std::thread thread_;
};

}  // namespace paceline::launch
