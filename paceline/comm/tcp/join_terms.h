#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paceline/comm/operation.h"
#include "paceline/net/tcp_address.h"

namespace paceline {

// What ranks that meet over TCP say to each other through the store (docs/wire_format.md). What is read is of unknown
// origin: nothing is given for what no rank writes.

/// What rank 0 says to all.
struct TcpTerms {
  std::uint64_t generation = 0;
  std::size_t segment_bytes = 0;
  Algorithm all_reduce = Algorithm::Auto;
  std::string secret = {};  ///< Hexadecimal digits; empty where all must have brought theirs.

  static bool is_segment(std::size_t bytes) {
    return bytes >= 4096 && bytes <= std::size_t{16} << 20 && bytes % 64 == 0;
  }
  static bool is_all_reduce(Algorithm algorithm) {
    return algorithm == Algorithm::Auto || algorithm == Algorithm::Direct || algorithm == Algorithm::Ring;
  }
  std::string text() const;
  static std::optional<TcpTerms> from_text(const std::string& text);
};

/// Where a rank listens.
struct Whereabouts {
  std::string host = {};  ///< The same for ranks that share one.
  int pid = 0;
  std::vector<SocketAddress> addresses = {};

  std::string text() const;
  static std::optional<Whereabouts> from_text(const std::string& text);
};

}  // namespace paceline
