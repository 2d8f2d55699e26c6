#include "paceline/launch/nodes/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "paceline/base/exit_codes.h"
#include "paceline/launch/nodes/heartbeat_message.h"

namespace paceline::launch {

namespace {

Nanoseconds time_from(const nlohmann::json& seconds) {
  const std::chrono::duration<double> time(std::clamp(seconds.get<double>(), 0.0, 1e9));
  return std::chrono::duration_cast<Nanoseconds>(time);
}

/// The newest of the lines, as much of them as has this room.
std::deque<std::string> newest(const std::deque<std::string>& lines, std::size_t room) {
  std::deque<std::string> kept;
  for (auto line = lines.rbegin(); line != lines.rend() && room > 0; ++line) {
    kept.push_front(line->substr(0, room));
    room -= kept.front().size();
  }
  return kept;
}

Fault fault_from(const std::string& label) { return StoreFailure{0, label, ""}.fault(); }

}  // namespace

nlohmann::json to_json(const WorkerEnd& end) {
  return {{"kind", "end"},
          {"rank", end.rank},
          {"status", end.status},
          {"after", seconds(end.after)},
          {"stopped", end.stopped},
          {"unseen", end.unseen},
          {"left", end.left},
          {"by_shell", end.by_shell},
          {"hidden_code", end.hidden_code},
          {"out_of_memory", end.out_of_memory},
          {"silence", end.silence ? end.silence->message() : ""},
          {"silence_fault", end.silence ? end.silence->label() : ""},
          {"host", end.host},
          {"pid", end.pid},
          {"last_known", end.last_known}};
}

WorkerEnd end_from(const nlohmann::json& message) {
  WorkerEnd end;
  end.rank = int_at(message, "rank");
  end.status = int_at(message, "status");
  end.after = time_from(message.at("after"));
  end.stopped = message.at("stopped").get<bool>();
  end.unseen = message.at("unseen").get<bool>();
  end.left = message.at("left").get<bool>();
  end.by_shell = message.at("by_shell").get<bool>();
  end.hidden_code = std::clamp(int_at(message, "hidden_code"), 0, 255);
  end.out_of_memory = message.at("out_of_memory").get<std::string>();
  const auto silence = message.at("silence").get<std::string>();
  const auto fault = message.at("silence_fault").get<std::string>();
  if (!silence.empty()) end.silence = Error(fault_from(fault), silence, Error::kNoRank, end.rank);
  end.host = message.at("host").get<std::string>();
  end.pid = int_at(message, "pid");
  end.last_known = message.at("last_known").get<std::string>();
  return end;
}

nlohmann::json to_json(const char* kind, const JobOutcome& job_outcome) {
  return {{"kind", kind},
          {"text", job_outcome.text},
          {"code", job_outcome.exit_code},
          {"signal", job_outcome.signal},
          {"rank", job_outcome.rank},
          {"fault", label_of(job_outcome.fault)}};
}

JobOutcome outcome_from(const nlohmann::json& message) {
  return {.text = message.at("text").get<std::string>(),
          .exit_code = int_at(message, "code"),
          .signal = std::clamp(int_at(message, "signal"), 0, 64),
          .rank = int_at(message, "rank"),
          .fault = fault_from(message.at("fault").get<std::string>())};
}

nlohmann::json to_json(const LastErrors& errors) {
  nlohmann::json list = nlohmann::json::array();
  // In JSON a byte may be six.
  const std::size_t room = kMaxControlFrame / 8 / std::max<std::size_t>(errors.size(), 1);
  for (const auto& [rank, lines] : errors) list.push_back({{"rank", rank}, {"lines", newest(lines, room)}});
  return {{"kind", "finished"}, {"errors", list}};
}

LastErrors errors_from(const nlohmann::json& message) {
  LastErrors errors;
  for (const auto& entry : message.at("errors")) {
    errors[int_at(entry, "rank")] = entry.at("lines").get<std::deque<std::string>>();
  }
  return errors;
}

// By name: the numbers are the machine's.
nlohmann::json to_json(const UserSignal& signal) {
  return {{"kind", "signal"}, {"signal", signal.name()}, {"node", signal.node}};
}

UserSignal signal_from(const nlohmann::json& message) {
  for (const int number : {SIGUSR1, SIGUSR2}) {
    const UserSignal signal{.number = number, .node = int_at(message, "node")};
    if (message.at("signal").get<std::string>() == signal.name()) return signal;
  }
  throw Error(ErrorCode::Corrupt, "a launcher passed a signal on that is not for workers");
}

nlohmann::json waiting_message(Nanoseconds waited) { return {{"kind", "waits"}, {"seconds", seconds(waited)}}; }

Nanoseconds waiting_time(const nlohmann::json& message) { return time_from(message.at("seconds")); }

JobOutcome standstill_outcome(const std::string& why) {
  return {.text = why, .exit_code = kExitMismatch, .fault = Fault::WaitsCross};
}

std::string silence_text(const std::string& seconds) {
  return fmt::format(
      "it is silent for {} s (nothing arrives from it, or nothing reaches it). Is the host up, and the "
      "network?",
      seconds);
}

Secret no_secret() { return Secret::from_hex(std::string(2 * Secret::kBytes, '0')); }

}  // namespace paceline::launch
