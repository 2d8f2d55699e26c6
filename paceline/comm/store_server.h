#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "paceline/comm/store_failure.h"

namespace paceline {

/// The store of a job, run by its launcher and reached by connect_store(). It listens on a Unix socket with a random
/// name in the abstract namespace, so nothing lies in the file system and nothing outlives the process, and it serves
/// only processes of its own user. One thread serves all clients; what they can make it hold is bounded.
///
/// Every method may be called from any thread. The constructor throws System.
class StoreServer {
 public:
  StoreServer();
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  /// What connect_store() takes, e.g. "unix:@paceline-0f3a...".
  std::string address() const;

  void set(std::string_view key, std::string_view value);
  /// Like Store::fail(): waiting clients throw the first report. Of each rank the first report is kept.
  void fail(int rank, std::string_view code, std::string_view message);

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
