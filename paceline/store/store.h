#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "paceline/base/clock.h"
#include "paceline/base/error.h"
#include "paceline/net/secret.h"

namespace paceline {

/// A small shared map through which ranks find each other. Keys and values are bytes; values are small (addresses,
/// numbers). Every method may be called from any thread.
///
/// Errors: PeerLost or Aborted with the job's first failure once fail() was called by anyone; System when the store
/// cannot be reached.
class Store {
 public:
  virtual ~Store() = default;
  /// Sets or replaces a value and wakes all that wait for it.
  virtual void set(std::string_view key, std::string_view value) = 0;
  /// Blocks until the key is set. Still gives what was set before the job failed. Throws Timeout, which names the key,
  /// at the deadline.
  virtual std::string get(std::string_view key, Deadline deadline) = 0;
  /// Adds to the counter of this name (0 at first) and returns the new value.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;
  /// Tells everyone why `rank`, as the job counts them, gave up. The first report is kept; waiting get() calls throw it
  /// on all ranks. Never throws: the caller has an error of its own in hand.
  virtual void fail(int rank, const Error& why) noexcept = 0;
};

/// The store for ranks that are threads of one process.
std::shared_ptr<Store> make_memory_store();

/// Connects to a StoreServer, e.g. of the launcher. `address` is as StoreServer::address() gives it, or
/// "tcp:HOST:PORT", of which all addresses that HOST has are tried, and which needs `secret`. Throws InvalidArgument
/// for what is no address, a host that does not resolve and a missing secret; Mismatch where the server knows another
/// one; System, naming host and port, where it cannot be reached by the deadline.
std::shared_ptr<Store> connect_store(const std::string& address, Deadline deadline,
                                     const std::optional<Secret>& secret = {});

}  // namespace paceline
