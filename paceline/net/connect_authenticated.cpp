#include "paceline/net/connect_authenticated.h"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "paceline/net/tcp_socket.h"

namespace paceline {

Introduction introduction_for(Purpose purpose) { return {static_cast<std::uint64_t>(purpose), 0, 0, 0}; }

ConnectOutcome connect_authenticated(const SocketAddress& address, const Secret& secret,
                                     const Introduction& introduction, Deadline deadline, UniqueFd& socket,
                                     std::string& why) {
  UniqueFd connection = connect_to(address, deadline, why);
  if (!connection) return errno == ECONNREFUSED ? ConnectOutcome::Refused : ConnectOutcome::NotThere;
  Handshake handshake(secret);
  Handshake::Challenge challenge;
  if (!receive_all(connection.get(), challenge, deadline)) {
    why = fmt::format("nothing that speaks this protocol answers at {}", address.text());
    return ConnectOutcome::NotThere;
  }
  const auto proof = handshake.prove(introduction, challenge);
  if (!proof) {
    why = fmt::format("something else listens at {}", address.text());
    return ConnectOutcome::NotThere;
  }
  Handshake::Answer answer;
  if (!send_all(connection.get(), *proof, deadline) || !receive_all(connection.get(), answer, deadline) ||
      !handshake.confirm(answer)) {
    why = fmt::format("it hung up at {}", address.text());
    return ConnectOutcome::HungUp;
  }
  socket = std::move(connection);
  return ConnectOutcome::Met;
}

}  // namespace paceline
