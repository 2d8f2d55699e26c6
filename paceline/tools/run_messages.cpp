#include "paceline/tools/run_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "paceline/tools/run_control.h"

namespace paceline::tools {

nlohmann::json to_json(const WorkerEnd& end) {
  return {{"kind", "end"},
          {"rank", end.rank},
          {"status", end.status},
          {"after", seconds(end.after)},
          {"stopped", end.stopped},
          {"out_of_memory", end.out_of_memory},
          {"silence", end.silence ? end.silence->message() : ""},
          {"host", end.host},
          {"pid", end.pid},
          {"where", end.where}};
}

WorkerEnd end_from(const nlohmann::json& message) {
  WorkerEnd end;
  end.rank = int_at(message, "rank");
  end.status = int_at(message, "status");
  end.after = std::chrono::duration_cast<Nanoseconds>(
      std::chrono::duration<double>(std::clamp(message.at("after").get<double>(), 0.0, 1e9)));
  end.stopped = message.at("stopped").get<bool>();
  end.out_of_memory = message.at("out_of_memory").get<std::string>();
  const auto silence = message.at("silence").get<std::string>();
  if (!silence.empty()) end.silence = Error(Fault::PeerSilent, silence, Error::kNoRank, end.rank);
  end.host = message.at("host").get<std::string>();
  end.pid = int_at(message, "pid");
  end.where = message.at("where").get<std::string>();
  return end;
}

nlohmann::json to_json(const char* kind, const Verdict& verdict) {
  return {{"kind", kind},
          {"text", verdict.text},
          {"code", verdict.exit_code},
          {"signal", verdict.signal},
          {"rank", verdict.rank},
          {"fault", label_of(verdict.fault)}};
}

Verdict verdict_from(const nlohmann::json& message) {
  return {.text = message.at("text").get<std::string>(),
          .exit_code = int_at(message, "code"),
          .signal = std::clamp(int_at(message, "signal"), 0, 64),
          .rank = int_at(message, "rank"),
          .fault = StoreFailure{0, message.at("fault").get<std::string>(), ""}.fault()};
}

nlohmann::json to_json(const LastErrors& errors) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [rank, lines] : errors) list.push_back({{"rank", rank}, {"lines", lines}});
  return {{"kind", "finished"}, {"errors", list}};
}

LastErrors errors_from(const nlohmann::json& message) {
  LastErrors errors;
  for (const auto& entry : message.at("errors")) {
    errors[int_at(entry, "rank")] = entry.at("lines").get<std::deque<std::string>>();
  }
  return errors;
}

std::string silence_text(const std::string& seconds) {
  return fmt::format(
      "it is silent for {} s (nothing arrives from it, or nothing reaches it). Is the host up, and the "
      "network?",
      seconds);
}

Secret no_secret() { return Secret::from_hex(std::string(2 * Secret::kBytes, '0')); }

}  // namespace paceline::tools
