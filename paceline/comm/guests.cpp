#include "paceline/comm/guests.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace paceline {

Guests::Guests(std::vector<UniqueFd> listeners, const Secret& secret)
    : listeners_(std::move(listeners)), secret_(secret) {}

std::optional<Guests::Guest> Guests::next(Nanoseconds patience) {
  const Deadline deadline(patience);
  do {
    std::erase_if(strangers_, [](const Stranger& stranger) { return stranger.deadline.passed(); });
    const short events = has_room() ? POLLIN : 0;
    std::vector<pollfd> polled;
    for (const UniqueFd& listener : listeners_) polled.push_back({listener.get(), events, 0});
    for (const Stranger& stranger : strangers_) polled.push_back({stranger.socket.get(), POLLIN, 0});
    Nanoseconds nap = deadline.left();
    if (!strangers_.empty()) nap = std::min(nap, strangers_.front().deadline.left());
    if (events == 0) nap = std::min(nap, kHearing - strangers_.front().age());
    nap = std::max(nap, Nanoseconds(0));
    ::poll(polled.data(), polled.size(), static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(nap).count()));
    auto entry = polled.begin() + static_cast<std::ptrdiff_t>(listeners_.size());
    for (auto stranger = strangers_.begin(); stranger != strangers_.end(); ++entry) {
      const auto current = stranger++;
      if (entry->revents == 0) continue;
      if (auto guest = hear(current)) return guest;
    }
    for (std::size_t i = 0; i < listeners_.size(); ++i) {
      // Not without end: those who are there have to be heard in between.
      for (std::size_t come = 0; polled[i].revents != 0 && come < kAtOnce && has_room(); ++come) {
        if (!welcome(listeners_[i].get())) break;
      }
    }
  } while (!deadline.passed());
  return std::nullopt;
}

bool Guests::has_room() const { return strangers_.size() < kAtOnce || strangers_.front().age() >= kHearing; }

// False if nobody waits.
bool Guests::welcome(int listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  UniqueFd socket(::accept4(listener, raw, &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) return errno == ECONNABORTED;  // or this process has no descriptor left for it
  Handshake handshake(secret_);
  const auto challenge = handshake.challenge();
  // A new connection takes that much at once.
  if (::send(socket.get(), challenge.data(), challenge.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
      static_cast<ssize_t>(challenge.size())) {
    return true;
  }
  if (strangers_.size() >= kAtOnce) strangers_.pop_front();
  strangers_.push_back({std::move(socket), {raw, length}, handshake, Deadline(kPatience)});
  return true;
}

// Whoever ends its connection or gives a bad proof is forgotten.
std::optional<Guests::Guest> Guests::hear(std::list<Stranger>::iterator stranger) {
  auto& [socket, address, handshake, deadline, proof, received] = *stranger;
  const ssize_t bytes = ::recv(socket.get(), proof.data() + received, proof.size() - received, MSG_DONTWAIT);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  received += static_cast<std::size_t>(std::max<ssize_t>(bytes, 0));
  if (bytes > 0 && received < proof.size()) return std::nullopt;
  std::optional<Guest> guest;
  if (received == proof.size()) {
    if (const auto introduction = handshake.accept(proof)) {
      guest = Guest{std::move(socket), address.text(), *introduction, handshake.answer(proof)};
    }
  }
  strangers_.erase(stranger);
  return guest;
}

}  // namespace paceline
