#include "paceline/launch/nodes/control_channel.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "paceline/base/background.h"
#include "paceline/base/error.h"
#include "paceline/net/connect_authenticated.h"
#include "paceline/net/tcp_socket.h"

namespace paceline::launch {
namespace {

using std::chrono::milliseconds;

// Longer than kSilence, so that a silent host is called that and not a broken connection.
constexpr std::chrono::seconds kTcpSilence{10};
constexpr std::chrono::seconds kLastWords{1};
constexpr std::size_t kMaxUnsent = std::size_t{8} << 20;

}  // namespace

ControlChannels::ControlChannels(std::optional<Acceptor> acceptor)
    : acceptor_(std::move(acceptor)), wake_(make_event()), events_ready_(make_event()) {
  thread_ = background_thread([this] { serve(); });
}

ControlChannels::~ControlChannels() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake();
  thread_.join();
}

int ControlChannels::add(UniqueFd socket) {
  const std::lock_guard lock(mutex_);
  const int number = open(std::move(socket));
  wake();
  return number;
}

void ControlChannels::send(int line, const nlohmann::json& message) {
  const std::lock_guard lock(mutex_);
  const auto found = lines_.find(line);
  if (found == lines_.end() || found->second.closing) return;
  found->second.out += encode_control(message);
  wake();
}

void ControlChannels::close(int line) {
  const std::lock_guard lock(mutex_);
  const auto found = lines_.find(line);
  if (found != lines_.end()) found->second.closing = true;
  wake();
}

void ControlChannels::stop_listening() {
  const std::lock_guard lock(mutex_);
  stop_listening_ = true;
  wake();
}

std::vector<LineEvent> ControlChannels::take_events() {
  const std::lock_guard lock(mutex_);
  eventfd_t ignored = 0;
  ::eventfd_read(events_ready_.get(), &ignored);
  return std::exchange(events_, {});
}

void ControlChannels::serve() {
  Nanoseconds next_beat = now() + kBeatPeriod;
  std::optional<Deadline> last_words;
  std::vector<pollfd> polled;
  std::vector<int> numbers;
  while (true) {
    int timeout_ms = 0;
    {
      const std::lock_guard lock(mutex_);
      if (stop_ && !last_words) {
        last_words = Deadline(kLastWords);
        for (auto& [number, line] : lines_) line.closing = true;
        for (auto& [number, line] : lines_) hang_up_when_due(line);
      }
      if (stop_ && (last_words->passed() || lines_.empty())) return;
      if (stop_ || stop_listening_) acceptor_.reset();
      polled.assign({{wake_.get(), POLLIN, 0}});
      numbers.clear();
      for (const auto& [number, line] : lines_) {
        polled.push_back({line.socket.get(), static_cast<short>(POLLIN | (line.out.empty() ? 0 : POLLOUT)), 0});
        numbers.push_back(number);
      }
      if (acceptor_) acceptor_->add_polled(polled);
      timeout_ms = poll_timeout(last_words ? std::min(next_beat, now() + last_words->left()) : next_beat);
    }
    if (::poll(polled.data(), polled.size(), timeout_ms) < 0) continue;  // EINTR, or out of memory for a moment

    eventfd_t ignored = 0;
    if (polled[0].revents != 0) ::eventfd_read(wake_.get(), &ignored);
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto found = lines_.find(numbers[i]);
      if (found != lines_.end() && (polled[i + 1].revents & ~POLLOUT) != 0) receive(numbers[i], found->second);
    }
    if (acceptor_) {
      for (Acceptor::Candidate& candidate : acceptor_->handle_polled(polled)) admit(std::move(candidate));
    }
    // After all that has arrived was read: it may have waited for this thread.
    if (now() >= next_beat) {
      beat_and_listen();
      next_beat = now() + kBeatPeriod;
    }
    for (auto at = lines_.begin(); at != lines_.end();) {
      const auto current = at++;
      flush(current->first, current->second);
      hang_up_when_due(current->second);
    }
    std::erase_if(lines_, [](const auto& entry) { return !entry.second.socket; });
  }
}

int ControlChannels::poll_timeout(Nanoseconds next_beat) const {
  Nanoseconds nap = std::max(next_beat - now(), Nanoseconds(0));
  if (const auto due = acceptor_ ? acceptor_->due() : std::nullopt) nap = std::min(nap, *due);
  return static_cast<int>(std::chrono::ceil<milliseconds>(nap).count());
}

// Throws System if it has gone already.
int ControlChannels::open(UniqueFd socket) {
  tune(socket.get(), kTcpSilence);
  lines_.emplace(next_line_, Line{.socket = std::move(socket), .silence = Silence(now())});
  return next_line_++;
}

void ControlChannels::admit(Acceptor::Candidate candidate) {
  if (candidate.introduction != introduction_for(Purpose::Launcher)) return;
  try {
    const SocketAddress own = local_address(candidate.socket.get()), peer = peer_address(candidate.socket.get());
    const int number = open(std::move(candidate.socket));
    const auto* answer = reinterpret_cast<const char*>(candidate.answer.data());
    lines_.at(number).out.assign(answer, candidate.answer.size());
    report({.kind = LineEvent::Kind::Opened, .line = number, .own = own, .peer = peer});
  } catch (const Error&) {
    // It has gone already.
  }
}

void ControlChannels::receive(int number, Line& line) {
  std::array<char, 65536> bytes;
  while (line.socket) {
    const ssize_t count = ::recv(line.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) {
      line.in.append(bytes.data(), static_cast<std::size_t>(count));
      take_frames(number, line);
    } else if (count == 0) {
      lose(number, line, "its launcher ended without a word");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      lose(number, line, system_error("the connection to it broke", errno).message());
    }
  }
}

void ControlChannels::take_frames(int number, Line& line) {
  try {
    while (auto frame = take_control(line.in)) {
      if (const Beat* beat = std::get_if<Beat>(&*frame)) {
        // That of an earlier beat than before says nothing new.
        if (beat->heard > line.echoed) line.silence.heard(now());
        line.echoed = std::max(line.echoed, beat->heard);
        line.beat.heard = beat->count;
      } else if (!line.closing) {
        report({.kind = LineEvent::Kind::Message, .line = number, .message = std::get<nlohmann::json>(*frame)});
      }
    }
  } catch (const Error& error) {
    lose(number, line, error.message());
  }
}

void ControlChannels::flush(int number, Line& line) {
  while (line.socket && !line.out.empty()) {
    const ssize_t count = ::send(line.socket.get(), line.out.data(), line.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      line.out.erase(0, static_cast<std::size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (line.out.size() > kMaxUnsent) lose(number, line, "it takes nothing");
      return;
    } else if (errno != EINTR) {
      // What it sent before may say why, and comes with the end of the connection.
      line.out.clear();
      return;
    }
  }
}

void ControlChannels::beat_and_listen() {
  for (auto& [number, line] : lines_) {
    if (!line.socket || line.closing) continue;
    const Nanoseconds silent = line.silence.look(now());
    if (silent >= kSilence && !std::exchange(line.reported, true)) {
      report({.kind = LineEvent::Kind::Silent, .line = number, .why = fmt::format("{:.1f}", seconds(silent))});
    }
    // One that is not taken needs no second one behind it.
    if (!line.out.empty()) continue;
    ++line.beat.count;
    line.out += encode_beat(line.beat);
  }
}

// Closed at once, with something of its own unread, a connection may take what we said last with it.
void ControlChannels::hang_up_when_due(Line& line) {
  if (!line.socket || !line.closing) return;
  if (line.out.empty() && !line.close_by) {
    ::shutdown(line.socket.get(), SHUT_WR);
    line.close_by = Deadline(kLastWords);
  }
  // Who is silent does not read.
  if (line.reported || (line.close_by && line.close_by->passed())) line.socket.reset();
}

void ControlChannels::lose(int number, Line& line, const std::string& why) {
  if (!line.closing) report({.kind = LineEvent::Kind::Closed, .line = number, .why = why});
  line.socket.reset();
}

void ControlChannels::report(LineEvent event) {
  events_.push_back(std::move(event));
  signal_event(events_ready_);
}

void ControlChannels::wake() { signal_event(wake_); }

}  // namespace paceline::launch
