#include "paceline/store/store_connector.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <vector>

#include "paceline/base/error.h"
#include "paceline/net/connect_authenticated.h"
#include "paceline/net/host_port.h"
#include "paceline/net/tcp_socket.h"
#include "paceline/net/unix_socket.h"
#include "paceline/store/protocol.h"

namespace paceline {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kUnix = "unix:@";
constexpr std::string_view kTcp = "tcp:";
// Where a name has several addresses, one that leads nowhere must not take all the time.
constexpr std::chrono::seconds kOneAddress{5};
// Strangers may push a client out before it is heard.
constexpr int kTimesSentAway = 5;

UniqueFd connect_unix(const std::string& address, Deadline deadline);

/// Where a store listens, and the secret it asks for.
struct TcpConnector {
  std::string host_port;
  std::vector<SocketAddress> addresses;
  Secret secret;

  UniqueFd connect(Deadline deadline) const;
};

}  // namespace

StoreConnector store_connector(const std::string& address, const std::optional<Secret>& secret) {
  if (address.starts_with(kTcp)) {
    const std::string host_port = address.substr(kTcp.size());
    const HostPort at = parse_host_port(host_port);
    if (!secret) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("the store at {} needs the job's secret: set PACELINE_SECRET_FILE", host_port));
    }
    return [connector = TcpConnector{host_port, resolve(at.host, at.port), *secret}](Deadline deadline) {
      return connector.connect(deadline);
    };
  }
  const std::size_t name_length = address.size() - std::min(address.size(), kUnix.size());
  if (!address.starts_with(kUnix) || name_length == 0 || name_length > UnixAddress::kLongest) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("\"{}\" is no store address; `paceline run` gives one as unix:@NAME or tcp:HOST:PORT", address));
  }
  return [address](Deadline deadline) { return connect_unix(address, deadline); };
}

Error store_silent(const std::string& address) {
  return Error(ErrorCode::System,
               fmt::format("the store at {} does not answer: its launcher is stopped or stuck", address));
}

namespace {

UniqueFd connect_unix(const std::string& address, Deadline deadline) {
  const UnixAddress to(address.substr(kUnix.size()));
  UniqueFd fd = unix_socket(SOCK_STREAM | SOCK_NONBLOCK);
  while (::connect(fd.get(), to.get(), to.length()) != 0) {
    if (errno == ECONNREFUSED) {
      throw Error(ErrorCode::System, fmt::format("nobody serves the store at {}: the launcher has ended", address));
    }
    // EAGAIN: too many wait to be accepted. There is nothing to poll for.
    if (errno != EAGAIN && errno != EINTR)
      throw system_error(fmt::format("cannot reach the store at {}", address), errno);
    if (deadline.passed()) throw store_silent(address);
    ::poll(nullptr, 0, 1);
  }
  return fd;
}

UniqueFd TcpConnector::connect(Deadline deadline) const {
  Nanoseconds pause = milliseconds(5);
  for (int sent_away = 0;;) {
    std::vector<std::string> reasons;
    std::size_t refused = 0;
    for (const SocketAddress& address : addresses) {
      const Nanoseconds left = std::max(deadline.left(), Nanoseconds(0));
      const Deadline patience(addresses.size() == 1 ? left : std::min<Nanoseconds>(left, kOneAddress));
      UniqueFd socket;
      std::string why;
      const auto outcome =
          connect_authenticated(address, secret, introduction_for(Purpose::Store), patience, socket, why);
      if (outcome == ConnectOutcome::Met) {
        tune(socket.get(), kStoreSilence);
        return socket;
      }
      reasons.push_back(why);
      if (outcome == ConnectOutcome::Refused) ++refused;
      if (outcome == ConnectOutcome::HungUp && ++sent_away >= kTimesSentAway) {
        throw Error(ErrorCode::Mismatch,
                    fmt::format("the store at {} does not let this process in ({}). Has it the job's secret "
                                "(PACELINE_SECRET_FILE)?",
                                host_port, why));
      }
    }
    if (refused == addresses.size()) {
      throw Error(ErrorCode::System, fmt::format("nobody serves the store at {} ({}): the launcher there has ended",
                                                 host_port, fmt::join(reasons, "; ")));
    }
    if (deadline.left() <= pause) {  // a try without time to answer would only hide the reason
      throw Error(ErrorCode::System,
                  fmt::format("cannot reach the store at {}: {}. Is that host up, and does a firewall let this one "
                              "reach the port?",
                              host_port, fmt::join(reasons, "; ")));
    }
    ::poll(nullptr, 0, static_cast<int>(std::chrono::ceil<milliseconds>(pause).count()));
    pause = std::min<Nanoseconds>(2 * pause, milliseconds(500));
  }
}

}  // namespace
}  // namespace paceline
