#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/tools/bench/check.h"
#include "paceline/tools/bench/options.h"
#include "paceline/tools/bench/pattern.h"
#include "paceline/tools/bench/plan.h"

namespace paceline::tools {

/// The buffers of one rank, for all rows in turn.
class BenchOperands {
 public:
  /// Throws System when there is not enough memory. Not collective.
  BenchOperands(const Comm& comm, const BenchOptions& options, const std::vector<BenchRow>& rows, BenchBuffers kind);

  /// This rank's call.
  Operation operation(const BenchRow& row) const;
  /// Fills what the call should overwrite with values that are no result.
  void spoil_output(const BenchRow& row) const;
  void write_input(const BenchRow& row) const;
  /// After a call on fresh inputs. Elements of this rank's result.
  std::size_t count_wrong(const BenchRow& row) const;

  std::byte* first() const { return first_.get(); }
  std::byte* second() const { return second_.get(); }

 private:
  using Memory = std::shared_ptr<std::byte>;

  static Memory allocate(const Comm& comm, BenchBuffers kind, std::size_t bytes);
  OperandSpans own(const BenchRow& row) const;

  const BenchOptions& options_;
  Seat seat_;
  Pattern pattern_;
  Memory first_, second_;
};

}  // namespace paceline::tools
