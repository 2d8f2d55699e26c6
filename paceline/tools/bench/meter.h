#pragma once

#include <functional>
#include <optional>

#include "paceline/comm/comm.h"
#include "paceline/tools/bench/operands.h"
#include "paceline/tools/bench/options.h"
#include "paceline/tools/bench/roofline.h"
#include "paceline/tools/bench/samples.h"

namespace paceline::tools {

/// Measures rows, one after the other. Collective, all of it.
class BenchMeter {
 public:
  /// `mapped` are operands that the roofline can use: in memory of Comm::allocate(); the same as `operands`, if these
  /// are.
  BenchMeter(const Comm& comm, const BenchOptions& options, const BenchOperands& operands, const BenchOperands& mapped);

  RowSamples measure(const BenchRow& row) const;

 private:
  /// How often what is done; the same on all ranks.
  struct Schedule {
    std::size_t batch = 1, samples = 1;
  };

  Schedule schedule(const std::function<void()>& call, double extra_s) const;
  double seconds_per_call(const std::function<void()>& call) const;
  double most_of_ranks(double value) const;
  void time_calls(const BenchRow& row, const Operation& operation, std::size_t samples, OperationSamples& own) const;
  void time_roofline(const BenchRow& row, const Roofline::Share& share, std::size_t samples,
                     RooflineSamples& own) const;
  std::uint64_t count_wrong(const BenchRow& row, const Operation& operation) const;
  std::vector<std::int64_t> of_all_ranks(const std::vector<std::int64_t>& own) const;

  const Comm& comm_;
  const BenchOptions& options_;
  const BenchOperands& operands_;
  const BenchOperands& mapped_;
  std::optional<Roofline> roofline_;
  double barrier_s_ = 0;
};

}  // namespace paceline::tools
