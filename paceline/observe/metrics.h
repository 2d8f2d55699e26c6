#pragma once

#include <map>
#include <string>

#include "paceline/comm/comm.h"

namespace paceline {

/// Figures of an evaluation over the parts that ranks have looked at, in one call:
///
///     Metrics metrics;
///     for (auto& batch : loader.epoch()) {
///       metrics.mean("loss", loss, batch.size());
///       metrics.sum("right", right);
///     }
///     auto all = metrics.over(comm);  // all.at("loss") is that of one process over all samples
class Metrics {
 public:
  /// The mean over everything that was added under this name on any rank, each value counting `weight` times. With 0
  /// the value does not count, even where it is NaN.
  void mean(const std::string& name, double value, double weight = 1);
  void sum(const std::string& name, double value);

  /// Collective. The figures over all ranks, the same on all. A mean over no weight at all is NaN.
  /// Throws Mismatch unless all ranks have added to the same names; a rank that has nothing to add adds 0 with weight
  /// 0.
  std::map<std::string, double> over(const Comm& comm) const;

 private:
  struct Total {
    double value = 0, weight = 0;
    bool is_mean = false;
  };
  Total& total(const std::string& name, bool is_mean);

  std::map<std::string, Total> totals_;
};

}  // namespace paceline
