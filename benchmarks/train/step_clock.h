#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace paceline_benchmark {

struct StepOptions {
  std::string model = "cnn";
  std::int64_t batch_size = 64;  ///< Of one rank.
  std::size_t warmup = 10;       ///< Steps that are not timed.
  std::size_t steps = 50;        ///< Steps that are.
  std::string out;               ///< File for the times; ".<rank>" is added to it.
  bool wait_for_go = false;      ///< After warm-up, say "ready" on stdout and wait for a line on stdin.
};

inline constexpr std::int64_t kBatches = 64;  ///< Different batches in memory, used in turn.

/// Ends the program after --help (0) and bad use (64).
StepOptions parse_step_options(int argc, char** argv, const std::string& program);

/// Times whole turns of a training loop, whatever they consist of.
class StepClock {
 public:
  StepClock(StepOptions options, int rank);
  /// At the end of each turn. False once all steps are timed; the times are then in the file.
  bool next();

 private:
  void write() const;

  StepOptions options_;
  int rank_;
  std::size_t turns_ = 0;
  std::chrono::steady_clock::time_point last_;
  std::vector<double> step_s_;
};

}  // namespace paceline_benchmark
