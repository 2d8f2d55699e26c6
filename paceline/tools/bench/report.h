#pragma once

#include <string>
#include <vector>

#include "paceline/tools/bench/options.h"
#include "paceline/tools/bench/statistics.h"

namespace paceline::tools {

/// Where and how it was measured.
struct BenchFacts {
  std::string host;
  int ranks = 0;
  int cores = 0;          ///< That this process may use.
  std::string transport;  // what carried the operations, where the choice was automatic
  std::string engine;
  std::string kernel;   ///< Instruction set.
  std::string started;  ///< UTC.
};

/// A whole run.
struct BenchReport {
  BenchOptions options;
  BenchFacts facts;
  std::vector<BenchResult> results;
};

/// What the output is, as lines of the table and the plot have it, e.g. "sum", "root 0" or "-".
std::string detail_text(const BenchOptions& options);

// The table, of some 125 columns, so that rows can be printed as they come. All end in a newline.
std::string table_head(const BenchOptions& options, const BenchFacts& facts);
std::string table_row(const BenchOptions& options, const BenchResult& result);
std::string table_foot(const BenchReport& report);

/// Schema paceline.bench/1, docs/bench.md.
std::string bench_json(const BenchReport& report);

/// An SVG: size against time, and against bus bandwidth, with the roofline.
std::string bench_plot(const BenchReport& report);

}  // namespace paceline::tools
