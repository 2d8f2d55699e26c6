#pragma once

#include <string>
#include <vector>

namespace paceline {

struct Report;

enum class Severity {
  Info,     ///< Worth knowing; at most a small gain.
  Warning,  ///< Costs time that can be won back.
  Error,    ///< The training itself is in doubt, e.g. two ranks were fed the same batches.
};

/// "info", "warning" or "error", as it stands in report.json.
const char* to_string(Severity severity);

/// Something about a run that its owner should know.
struct Finding {
  std::string id{};  ///< Stable name, e.g. "data_wait".
  Severity severity = Severity::Info;
  std::string evidence{};  ///< One sentence with the numbers it rests on.
  double cost_s = 0;       ///< Seconds of each step that it costs; 0 when it costs none or that is not known.
  std::string fix{};       ///< What to do, one sentence. Empty when there is nothing to do.
  double max_gain = 1;     ///< No fix makes the run faster than by this factor: 1 / (1 - cost_s / step).

  bool operator==(const Finding&) const = default;
};

/// What the figures of `report` say, in the order of sort_findings(). Does not contain the findings
/// that the report already has. With f the share of the step, over all ranks unless said otherwise:
///
///     data_wait          f > 5 % on some rank
///     straggler,         exposed communication > 10 %, half of it or more waiting for peers: one rank's busy time is
///     imbalance            > 1.1 times the median of the others, or none is
///     exposed_transfer   exposed communication > 10 %, more than half of it transferring
///     tiny_buckets       8 or more operations a step of less than 64 KiB on average, and communication > 5 %
///     optimizer          f > 30 %
///     other              f > 3 %
///     oversubscribed     threads x ranks > cores on some host
///     shared_resource    efficiency against one worker < 80 %, exposed communication < 10 %, and more than 10 % of the
///                          step not explained by it or by waiting for data
///     comm_small         exposed communication < 10 %: not the problem
///
/// Exposed communication is a warning above 30 % and information below. Rules about communication need more than one
/// worker; a rule whose figures are not known is left out.
std::vector<Finding> findings(const Report& report);

/// Most severe first, then by the most they can gain.
void sort_findings(std::vector<Finding>& findings);

/// The one to act on: an Error if there is one, else the one with a fix that can gain most. Null when there is none.
const Finding* most_useful(const std::vector<Finding>& findings);

}  // namespace paceline
