#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "channel.h"

namespace paceline_benchmark {

struct StepOptions {
  std::string model = "cnn";
  std::int64_t batch_size = 64;                     ///< Of one rank.
  std::size_t bucket_bytes = std::size_t{1} << 20;  ///< Of paceline.
  std::string channel;  ///< Unix socket (SOCK_SEQPACKET) that benchmarks/train/run listens on.
};

inline constexpr std::int64_t kBatches = 64;  ///< In memory, used in turn; ranks share them out.

/// Ends the program after --help (0) and bad use (64).
StepOptions parse_step_options(int argc, char** argv, const std::string& program);

/// Lets a training loop turn in the bursts that benchmarks/train/run asks for, and times whole turns, whatever they
/// consist of. Between bursts it blocks and uses no CPU.
///
///     it: "ready"   run: "burst 40"   it: "[0.021, ...]", seconds of each turn   ...   run: "end"
class StepClock {
 public:
  /// When all is built and the loop may begin.
  explicit StepClock(const std::string& channel);

  /// At the top of each turn. False at the end.
  bool next();

 private:
  std::size_t receive_burst() const;

  Channel channel_;
  std::size_t burst_ = 0;  // turns in it
  std::chrono::steady_clock::time_point last_;
  std::vector<double> turn_s_;
};

}  // namespace paceline_benchmark
