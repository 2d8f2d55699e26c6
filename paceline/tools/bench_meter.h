#pragma once

#include <functional>

#include "paceline/comm/comm.h"
#include "paceline/tools/bench_operands.h"
#include "paceline/tools/bench_options.h"
#include "paceline/tools/bench_roofline.h"
#include "paceline/tools/bench_samples.h"

namespace paceline::tools {

/// Measures rows, one after the other. Collective, all of it.
class BenchMeter {
 public:
  BenchMeter(const Comm& comm, const BenchOptions& options, const BenchOperands& operands);

  RowSamples measure(const BenchRow& row) const;

 private:
  /// How often what is done; the same on all ranks.
  struct Schedule {
    std::size_t batch = 1, samples = 1;
  };

  bool has_roofline() const;
  Schedule schedule(const std::function<void()>& call, double extra_s) const;
  double seconds_per_call(const std::function<void()>& call) const;
  double most_of_ranks(double value) const;
  void time_calls(const BenchRow& row, const Operation& operation, std::size_t samples, OperationSamples& own) const;
  void time_roofline(const BenchRow& row, const RooflineShare& share, std::size_t samples, RooflineSamples& own) const;
  std::uint64_t count_wrong(const BenchRow& row, const Operation& operation) const;
  std::vector<std::int64_t> of_all_ranks(const std::vector<std::int64_t>& own) const;

  const Comm& comm_;
  const BenchOptions& options_;
  const BenchOperands& operands_;
  double barrier_s_ = 0;
};

}  // namespace paceline::tools
