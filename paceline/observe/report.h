#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "paceline/observe/breakdown.h"
#include "paceline/observe/findings.h"
#include "paceline/observe/rank_summary.h"

namespace paceline {

struct RunInfo {
  std::string id{};                  ///< E.g. the run folder's name.
  std::string started{};             ///< utc_text() of the start.
  int world = 1;                     ///< This and the following are filled in by make_report().
  std::vector<std::string> hosts{};  ///< Each name once, in rank order.
  std::uint64_t steps = 0;           ///< Training steps of the rank that ran most, warm-up included.
  std::uint64_t warmup_steps = 0;    ///< The first of them, left out of all figures.
};

/// What was trained, and how. An empty text and an empty number mean "not known".
struct ConfigInfo {
  std::string model{};
  std::optional<std::uint64_t> parameters{};
  std::optional<std::uint64_t> batch_per_rank{};
  std::string optimizer{};
  std::string mode{};   ///< E.g. "synchronous".
  std::string codec{};  ///< "none" when gradients travel as they are.
  std::optional<std::uint64_t> bucket_bytes{};
};

/// What only the program knows. Leave out what was not measured; the report then says null.
struct Outcome {
  std::optional<double> one_worker_samples_per_s{};  ///< Throughput of the same job on one worker, for the speed-up.
  std::optional<double> test_accuracy{};             ///< 0 to 1.
};

/// A run in figures. Means over ranks weigh each rank the same.
struct Report {
  RunInfo run;
  ConfigInfo config;
  double samples_per_s = 0;  ///< All ranks together: the sum of theirs.
  std::optional<double> speedup_vs_one;
  std::optional<double> test_accuracy;
  StepTimes step;                  ///< Mean over ranks of each figure.
  StepBreakdown breakdown;         ///< Mean over ranks.
  std::vector<RankSummary> ranks;  ///< In rank order.
  std::vector<Finding> findings;   ///< Most severe first, then by the most they can gain.
};

/// Puts together what all ranks gathered; `ranks` may be in any order. Judges the figures with findings() and adds what
/// the ranks found while running, equal ones once.
///
/// Error InvalidArgument unless `ranks` are exactly the ranks 0 to n-1 with n > 0.
Report make_report(RunInfo run, ConfigInfo config, std::vector<RankSummary> ranks, const Outcome& outcome = {});

/// ISO 8601 in UTC, to the second: "2024-05-01T12:00:00Z".
std::string utc_text(std::chrono::system_clock::time_point time);

/// Creates `dir` where it is missing and makes sure that a report can be written there, so that a run does not fail at
/// its end. Error InvalidArgument when `dir` is empty or is not a directory, System when the system refuses; both name
/// the path.
void require_writable(const std::filesystem::path& dir);

/// Writes `dir`/report.json (schema "paceline.report/1"; all times in seconds) and returns its path. It replaces an
/// older one at once: a reader finds the old or the new report, never half of one. Errors as require_writable().
std::filesystem::path write_report(const Report& report, const std::filesystem::path& dir);

/// Reads what write_report() wrote. `path` is the file, or the directory it lies in. The file has neither threads,
/// cores, operations, bytes nor samples per rank: these are 0, and findings, which rest on them, are those of the file.
///
/// Error System when it cannot be read, Corrupt, naming the field, when it is not such a report, and where it is no
/// regular file.
Report read_report(const std::filesystem::path& path);

}  // namespace paceline
