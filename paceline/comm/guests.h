#pragma once

#include <list>
#include <optional>
#include <string>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/base/unique_fd.h"
#include "paceline/comm/handshake.h"
#include "paceline/comm/tcp_address.h"

namespace paceline {

/// Those who connect to a listening rank. Whoever does not prove within 2 s that it knows the secret is sent away;
/// until then no more than Handshake::kProofBytes are read from it, and at most kAtOnce are heard at a time. Where more
/// come, the one that has been there longest has to go, but has kHearing in any case; the others wait in the kernel's
/// queue.
class Guests {
 public:
  static constexpr std::size_t kAtOnce = 64;
  static constexpr Nanoseconds kPatience = std::chrono::seconds(2);
  static constexpr Nanoseconds kHearing = std::chrono::milliseconds(50);

  Guests(std::vector<UniqueFd> listeners, const Secret& secret);

  struct Guest {
    UniqueFd socket;
    std::string address;
    Introduction introduction;
    Handshake::Answer answer;  ///< To be sent to it, if it is welcome.
  };
  /// The next one that has proved itself, waiting for as long as this at most.
  std::optional<Guest> next(Nanoseconds patience);

 private:
  struct Stranger {
    UniqueFd socket;
    SocketAddress address;
    Handshake handshake;
    Deadline deadline;
    Handshake::Proof proof{};
    std::size_t received = 0;
    Nanoseconds age() const { return kPatience - deadline.left(); }
  };

  bool has_room() const;
  bool welcome(int listener);
  std::optional<Guest> hear(std::list<Stranger>::iterator stranger);

  const std::vector<UniqueFd> listeners_;
  const Secret secret_;
  std::list<Stranger> strangers_;  // the one that has been there longest in front
};

}  // namespace paceline
