#include "paceline/launch/nodes/reconnector.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "paceline/base/background.h"
#include "paceline/net/connect_authenticated.h"

namespace paceline::launch {
namespace {

using std::chrono::milliseconds;

// A host that does not answer must not keep others of the same name, or the end of this program, waiting.
constexpr std::chrono::seconds kOneTry{2};
constexpr milliseconds kLongestPause{1000};
// Strangers may push this launcher out before it is heard.
constexpr int kTimesSentAway = 5;

}  // namespace

Reconnector::Reconnector(std::vector<SocketAddress> addresses, const Secret& secret, Deadline deadline)
    : addresses_(std::move(addresses)), secret_(secret), deadline_(deadline), done_(make_event()), stop_(make_event()) {
  thread_ = background_thread([this] { connect(); });
}

Reconnector::~Reconnector() {
  signal_event(stop_);
  thread_.join();
}

std::optional<Reconnector::Result> Reconnector::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(result_, std::nullopt);
}

std::string Reconnector::last_reason() const {
  const std::lock_guard lock(mutex_);
  return last_reason_;
}

void Reconnector::connect() {
  milliseconds pause{50};
  for (int sent_away = 0;;) {
    std::vector<std::string> reasons;
    for (const SocketAddress& address : addresses_) {
      const Deadline patience(std::clamp<Nanoseconds>(deadline_.left(), Nanoseconds(0), kOneTry));
      UniqueFd socket;
      std::string why;
      const auto outcome =
          connect_authenticated(address, secret_, introduction_for(Purpose::Launcher), patience, socket, why);
      if (outcome == ConnectOutcome::Met) return finish({.socket = std::move(socket), .why = ""});
      if (outcome == ConnectOutcome::HungUp && ++sent_away >= kTimesSentAway) {
        return finish({.socket = {}, .other_secret = true, .why = why});
      }
      reasons.push_back(why);
    }
    {
      const std::lock_guard lock(mutex_);
      last_reason_ = fmt::format("{}", fmt::join(reasons, "; "));
    }
    if (deadline_.left() <= pause) return finish({.socket = {}, .why = last_reason_});
    pollfd stopped{stop_.get(), POLLIN, 0};
    if (::poll(&stopped, 1, static_cast<int>(pause.count())) > 0) return;
    pause = std::min(2 * pause, kLongestPause);
  }
}

void Reconnector::finish(Result result) {
  const std::lock_guard lock(mutex_);
  result_ = std::move(result);
  signal_event(done_);
}

}  // namespace paceline::launch
