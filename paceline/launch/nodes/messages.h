#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "paceline/launch/nodes/nodes.h"
#include "paceline/net/secret.h"

namespace paceline::launch {

// What launchers say to each other, as JSON. Node 0 hears: join_request, end, leave, finished, waits, ranks, signal. It
// says: refused, joined, welcome, leave, over, where, say, signal. All ..._from() throw nlohmann::json::exception or
// Corrupt for what is none.

nlohmann::json to_json(const WorkerEnd& end);
WorkerEnd end_from(const nlohmann::json& message);
nlohmann::json to_json(const char* kind, const JobOutcome& job_outcome);
JobOutcome outcome_from(const nlohmann::json& message);
nlohmann::json to_json(const LastErrors& errors);
LastErrors errors_from(const nlohmann::json& message);

nlohmann::json to_json(const UserSignal& signal);
UserSignal signal_from(const nlohmann::json& message);

/// That ranks wait in vain, for as long.
nlohmann::json waiting_message(Nanoseconds waited);
Nanoseconds waiting_time(const nlohmann::json& message);

/// That no rank can go on, for this reason.
JobOutcome standstill_outcome(const std::string& why);

/// What a lost host's line says that was silent for so many seconds.
std::string silence_text(const std::string& seconds);

/// What stands for the secret between launchers of one user on one host. Anybody knows it.
Secret no_secret();

}  // namespace paceline::launch
