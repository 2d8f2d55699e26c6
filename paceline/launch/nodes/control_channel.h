#pragma once

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/base/unique_fd.h"
#include "paceline/launch/failure/silence.h"
#include "paceline/launch/nodes/heartbeat_message.h"
#include "paceline/net/acceptor.h"
#include "paceline/net/tcp_address.h"

namespace paceline::launch {

/// What happened on one line of ControlChannels.
struct LineEvent {
  enum class Kind {
    Opened,   ///< Somebody has called, who knows the secret, from `peer` to `own`.
    Message,  ///< `message`
    Closed,   ///< The line's end; `why`.
    Silent,   ///< Nothing was heard for kSilence, or nothing that is sent arrives. Reported once; the line stays.
  };
  Kind kind;
  int line;
  nlohmann::json message = {};
  std::string why = {};
  std::optional<SocketAddress> own = {}, peer = {};
};

/// A launcher's connections to others, its lines: a thread that carries messages and sees whether the other sides are
/// there, whatever keeps its owner busy. Methods may be called from any thread and do not block.
class ControlChannels {
 public:
  static constexpr Nanoseconds kBeatPeriod = std::chrono::milliseconds(500);
  static constexpr Nanoseconds kSilence = std::chrono::seconds(4);

  /// With an acceptor, those who are let in become lines. Throws System.
  explicit ControlChannels(std::optional<Acceptor> acceptor);
  /// Sends what was given to it and lets the other sides read it, as far as that works within a second.
  ~ControlChannels();
  ControlChannels(const ControlChannels&) = delete;
  ControlChannels& operator=(const ControlChannels&) = delete;

  /// A connection on which both sides have proved the secret, as a new line.
  int add(UniqueFd socket);
  void send(int line, const nlohmann::json& message);
  /// Closes the line once all is sent. There is no event for that.
  void close(int line);
  /// Lets nobody in from now on.
  void stop_listening();

  /// Readable while there are events to take. Owned by this.
  int fd() const { return events_ready_.get(); }
  std::vector<LineEvent> take_events();

 private:
  struct Line {
    UniqueFd socket;
    std::string in = {}, out = {};
    Silence silence;
    Beat beat = {};
    std::uint64_t echoed = 0;  // the last of our beats that it has heard
    bool reported = false;     // as silent
    bool closing = false;
    std::optional<Deadline> close_by = {};  // all is sent; the other side may read it until then
  };

  void serve();
  int poll_timeout(Nanoseconds next_beat) const;
  int open(UniqueFd socket);
  void admit(Acceptor::Candidate candidate);
  void receive(int number, Line& line);
  void take_frames(int number, Line& line);
  void flush(int number, Line& line);
  void beat_and_listen();
  void hang_up_when_due(Line& line);
  void lose(int number, Line& line, const std::string& why);
  void report(LineEvent event);
  void wake();

  mutable std::mutex mutex_;
  std::map<int, Line> lines_;
  std::optional<Acceptor> acceptor_;
  std::vector<LineEvent> events_;
  int next_line_ = 0;
  bool stop_ = false;
  bool stop_listening_ = false;
  UniqueFd wake_, events_ready_;
  std::thread thread_;
};

}  // namespace paceline::launch
