#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/comm/status/status_view.h"

namespace paceline::launch {

// Ranks as launchers tell each other of them, each with its `host` and its process's state. Times travel as ages, since
// each host has a clock of its own. views_from() throws nlohmann::json::exception or Corrupt for what is none.

nlohmann::json to_json(const std::vector<RankView>& views, const std::string& host, Nanoseconds at);
std::vector<RankView> views_from(const nlohmann::json& list, Nanoseconds at);

/// When ranks wait in vain, node 0 asks all hosts where theirs are, and makes one table of it.
class RankQuery {
 public:
  /// How long a launcher may take to answer.
  static constexpr Nanoseconds kPatience = std::chrono::seconds(1);

  /// Some ranks have waited for as long. Whether the hosts, of which there are so many, are to be asked now.
  bool begin(Nanoseconds waited, int hosts);
  void add(int node, std::vector<RankView> views);
  /// The text, once all have answered or kPatience is over; nothing if all of that was told already.
  std::optional<std::string> take();
  /// Why none of all ranks can go on, as of the last take().
  const std::optional<std::string>& why_none_goes_on() const { return standstill_; }
  /// When take() should be called at the latest.
  std::optional<Nanoseconds> due() const;

 private:
  std::optional<Deadline> until_;  // a question is under way
  Nanoseconds waited_{};
  std::size_t hosts_ = 0;
  std::map<int, std::vector<RankView>> answers_;  // by node
  std::optional<std::string> standstill_;
  std::optional<std::pair<std::string, std::uint64_t>> told_;  // communicator and number of the operation
};

}  // namespace paceline::launch
