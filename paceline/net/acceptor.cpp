#include "paceline/net/acceptor.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace paceline {
namespace {

constexpr Nanoseconds kAcceptPause = std::chrono::milliseconds(100);

}  // namespace

Acceptor::Acceptor(std::vector<UniqueFd> listeners, const Secret& secret)
    : listeners_(std::move(listeners)), secret_(secret) {}

std::optional<Acceptor::Candidate> Acceptor::next(Nanoseconds patience) {
  const Deadline deadline(patience);
  do {
    if (proved_.empty()) {
      std::vector<pollfd> polled;
      add_polled(polled);
      const Nanoseconds left = std::max(deadline.left(), Nanoseconds(0));
      const Nanoseconds nap = std::min(left, due().value_or(left));
      ::poll(polled.data(), polled.size(), static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(nap).count()));
      proved_ = handle_polled(polled);
    }
    if (!proved_.empty()) {
      Candidate candidate = std::move(proved_.front());
      proved_.erase(proved_.begin());
      return candidate;
    }
  } while (!deadline.passed());
  return std::nullopt;
}

void Acceptor::add_polled(std::vector<pollfd>& polled) {
  if (accept_again_ && accept_again_->passed()) accept_again_.reset();
  polled_from_ = polled.size();
  const short events = accept_again_ || !has_room() ? 0 : POLLIN;
  for (const UniqueFd& listener : listeners_) polled.push_back({listener.get(), events, 0});
  for (const Stranger& stranger : strangers_) polled.push_back({stranger.socket.get(), POLLIN, 0});
}

std::vector<Acceptor::Candidate> Acceptor::handle_polled(const std::vector<pollfd>& polled) {
  std::vector<Candidate> proved;
  // Read before the time is looked at: this process may have been stopped since the proof came.
  auto entry = polled.begin() + static_cast<std::ptrdiff_t>(polled_from_ + listeners_.size());
  for (auto stranger = strangers_.begin(); stranger != strangers_.end(); ++entry) {
    const auto current = stranger++;
    if (entry->revents == 0) continue;
    if (auto candidate = hear(current)) proved.push_back(std::move(*candidate));
  }
  std::erase_if(strangers_, [](const Stranger& stranger) { return stranger.deadline.passed(); });
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    // Not without end: those who are there have to be heard in between.
    for (std::size_t come = 0; polled[polled_from_ + i].revents != 0 && come < kAtOnce && has_room(); ++come) {
      if (!welcome(listeners_[i].get())) break;
    }
  }
  return proved;
}

std::optional<Nanoseconds> Acceptor::due() const {
  std::optional<Nanoseconds> nearest;
  if (!strangers_.empty()) nearest = strangers_.front().deadline.left();
  if (!has_room()) nearest = std::min(*nearest, kHearing - strangers_.front().age());
  if (accept_again_) nearest = std::min(nearest.value_or(accept_again_->left()), accept_again_->left());
  if (nearest) nearest = std::max(*nearest, Nanoseconds(0));
  return nearest;
}

bool Acceptor::has_room() const { return strangers_.size() < kAtOnce || strangers_.front().age() >= kHearing; }

// False if nobody waits, or nobody can be let in now.
bool Acceptor::welcome(int listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  UniqueFd socket(::accept4(listener, raw, &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) {
    if (errno == ECONNABORTED || errno == EINTR) return true;
    if (errno != EAGAIN) accept_again_ = Deadline(kAcceptPause);
    return false;
  }
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
std::optional<Acceptor::Candidate> Acceptor::hear(std::list<Stranger>::iterator stranger) {
  auto& [socket, address, handshake, deadline, proof, received] = *stranger;
  const ssize_t bytes = ::recv(socket.get(), proof.data() + received, proof.size() - received, MSG_DONTWAIT);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  received += static_cast<std::size_t>(std::max<ssize_t>(bytes, 0));
  if (bytes > 0 && received < proof.size()) return std::nullopt;
  std::optional<Candidate> candidate;
  if (received == proof.size()) {
    if (const auto introduction = handshake.accept(proof)) {
      candidate = Candidate{std::move(socket), address.text(), *introduction, handshake.answer(proof)};
    }
  }
  strangers_.erase(stranger);
  return candidate;
}

}  // namespace paceline
