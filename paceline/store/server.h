#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/net/port_range.h"
#include "paceline/net/secret.h"
#include "paceline/net/tcp_address.h"
#include "paceline/store/failure.h"

namespace paceline {

/// Where a store listens beside its Unix socket. TcpOptions::bind is made addresses of by addresses_to_bind().
struct StoreOverTcp {
  std::vector<SocketAddress> addresses;
  PortRange ports = {};  // on each address
  /// Who does not know it is not let in, on loopback neither: other users are there too.
  Secret secret;
};

/// The store of a job, run by its launcher and reached by connect_store(). It listens on a Unix socket with a random
/// name in the abstract namespace, so nothing lies in the file system and nothing outlives the process, and it serves
/// only processes of its own user. Over TCP, where asked for, it serves whoever proves that it knows the job's secret.
/// One thread serves all clients; what they can make it hold is bounded.
///
/// Every method may be called from any thread. The constructors throw System.
class StoreServer {
 public:
  StoreServer();
  /// Also listens over TCP.
  explicit StoreServer(const StoreOverTcp& tcp);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  /// What connect_store() takes, e.g. "unix:@paceline-0f3a...".
  std::string address() const;
  /// The same over TCP, one for each address that it listens on, e.g. "tcp:10.0.0.1:4711".
  const std::vector<std::string>& tcp_addresses() const;

  void set(std::string_view key, std::string_view value);
  /// Like Store::fail(): waiting clients throw the first report. Of each rank the first report is kept.
  void fail(int rank, const Error& why);

  /// Tells the server that the rank's process ended with success. If it had not set "joined/<rank>" and a client that
  /// is still connected uses the store, now or later, the others would wait for it in vain: fails the job.
  void left(int rank);
  /// The report that left() led to.
  std::optional<StoreFailure> left_too_early() const;
  /// Readable once left_too_early() has a value. Owned by the server.
  int left_too_early_fd() const;

  std::optional<StoreFailure> first_failure() const;
  /// The first report of each rank.
  std::map<int, StoreFailure> failures() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace paceline
