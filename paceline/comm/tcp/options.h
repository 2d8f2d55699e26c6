#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "paceline/base/clock.h"
#include "paceline/comm/operation.h"
#include "paceline/net/port_range.h"
#include "paceline/net/secret.h"

namespace paceline {

/// How ranks reach each other over TCP. Where rank 0's value counts, the others' are not looked at.
struct TcpOptions {
  /// Where to listen: empty for loopback only; a numeric address; "route:HOST" for the address by which the kernel
  /// reaches HOST; or interfaces: "eth,ens" by prefix, "=eth0" by name, "^docker,lo" all but these.
  std::string bind = {};
  PortRange ports = {};
  /// Who does not know it is not let in. Required beyond loopback; there, rank 0 makes one and passes it on through the
  /// store.
  std::optional<Secret> secret = {};
  /// How large all-reduces are carried out: Auto, inside hosts first where one has several ranks
  /// (Algorithm::Hierarchical) and else Direct, both in rank order, with the same bits as in shared memory; Direct; or
  /// Ring, where every rank should talk to one other only (types of 16 bits and means of integers go Direct). Rank 0's
  /// counts.
  Algorithm all_reduce = Algorithm::Auto;
  /// A segment of every peer should fit the cache. Rank 0's counts.
  std::size_t segment_bytes = std::size_t{128} << 10;
  /// After how long without an answer a peer's host is taken for gone. Its kernel answers, however busy the rank is.
  Nanoseconds silence = std::chrono::seconds(5);
};

}  // namespace paceline
