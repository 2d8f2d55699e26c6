#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "paceline/observe/report.h"
#include "paceline/train/data_parallel.h"

namespace paceline {

/// What the program knows and the library does not.
struct ReportOptions {
  std::string run_id{};  ///< E.g. the run folder's name; empty: the time it started.
  std::string model{};
  std::string optimizer{};
  std::size_t batch_per_rank = 0;
  std::optional<double> test_accuracy{};      ///< 0 to 1
  std::optional<double> samples_per_s_one{};  ///< One worker's rate, for speedup_vs_one.
};

/// Collective: gathers each rank's account and makes the report of the run, the same on all ranks.
Report collect_report(const DistributedDataParallel& ddp, const ReportOptions& options);

}  // namespace paceline
