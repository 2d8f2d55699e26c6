#pragma once

#include <poll.h>

#include <list>
#include <optional>
#include <string>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/base/unique_fd.h"
#include "paceline/net/handshake.h"
#include "paceline/net/tcp_address.h"

namespace paceline {

/// Accepts those who connect to a listening rank, store or launcher, once they have proved that they know the secret.
/// Whoever does not do so within 2 s is sent away; until then no more than Handshake::kProofBytes are read from it, and
/// at most kAtOnce are heard at a time. Where more come, the one that has been there longest has to go, but has
/// kHearing in any case; the others wait in the kernel's queue.
class Acceptor {
 public:
  static constexpr std::size_t kAtOnce = 64;
  static constexpr Nanoseconds kPatience = std::chrono::seconds(2);
  static constexpr Nanoseconds kHearing = std::chrono::milliseconds(50);

  Acceptor(std::vector<UniqueFd> listeners, const Secret& secret);

  /// A caller that has proved that it knows the secret; by its introduction the owner decides whether to let it in.
  struct Candidate {
    UniqueFd socket;
    std::string address;
    Introduction introduction;
    Handshake::Answer answer;  ///< To be sent to it, if it is welcome.
  };
  /// The next one that has proved itself, waiting for as long as this at most.
  std::optional<Candidate> next(Nanoseconds patience);

  // For an owner that has a poll() of its own, and calls nothing that blocks.

  /// Adds what to poll, and takes the result from the same place. Gives those that have proved themselves.
  void add_polled(std::vector<pollfd>& polled);
  std::vector<Candidate> handle_polled(const std::vector<pollfd>& polled);
  /// After how long handle_polled() has something to do though nothing was polled; nothing if never.
  std::optional<Nanoseconds> due() const;

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
  std::optional<Candidate> hear(std::list<Stranger>::iterator stranger);

  std::vector<UniqueFd> listeners_;
  Secret secret_;
  std::list<Stranger> strangers_;         // the one that has been there longest in front
  std::optional<Deadline> accept_again_;  // with no descriptor left, a listener would be ready over and over
  std::size_t polled_from_ = 0;
  std::vector<Candidate> proved_;  // for next(), which gives one at a time
};

}  // namespace paceline
