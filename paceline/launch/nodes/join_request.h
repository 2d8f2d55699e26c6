#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "paceline/launch/options.h"

namespace paceline::launch {

/// What a launcher says of itself when it comes to the rendezvous.
struct JoinRequest {
  std::string version;  ///< Of paceline.
  std::string build;    ///< A hash of its executable.
  int node = 0, nodes = 0;
  int workers = 0;
  std::string host;     ///< Its name.
  std::string machine;  ///< The same for launchers that share a kernel and a network.
  std::string job;      ///< --job
  std::string program;  ///< The command line of its workers.
  std::string program_hash;
  std::string bind;   ///< Where its workers will listen.
  std::string token;  ///< Random; one that comes again after its connection broke has the same.

  /// "node 1 (host b at 10.0.0.2)"
  std::string who(const std::string& address) const;
};

/// This launcher's own.
JoinRequest make_join_request(const RunOptions& options);
nlohmann::json to_json(const JoinRequest& join_request);
/// Throws nlohmann::json::exception or Corrupt for what is none.
JoinRequest join_request_from(const nlohmann::json& message);

/// Why a launcher of another version, or of another job, cannot take part beside node 0's; empty if it can.
std::string incompatibility(const JoinRequest& zero, const JoinRequest& other, const std::string& address);
/// What is odd about it, but no error: other programs, other builds. Empty if nothing.
std::string oddity(const JoinRequest& zero, const JoinRequest& other, const std::string& address);

}  // namespace paceline::launch
