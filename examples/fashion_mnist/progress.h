#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "paceline/observe/recorder.h"

namespace fashion_mnist {

struct ProgressOptions {
  bool shown = true;  ///< Rank 0 shows it for all.
  int world_size = 1;
  int epochs = 1;
  std::size_t steps = 0;  ///< In all.
};

/// How far the training is, on stdout: a bar that is drawn over itself, or a line every few seconds.
///
/// PACELINE_PROGRESS says which: "bar" or "lines"; without it, a bar on a terminal. The bar ends in '\r' rather than
/// '\n', so that a launcher that reads it from a pipe can tell it from a line and show it in place.
/// Throws std::invalid_argument for another value.
class Progress {
 public:
  Progress(const paceline::Recorder& recorder, ProgressOptions options);

  /// After each step, with this rank's loss; epochs count from 1.
  void step(int epoch, std::size_t steps_done, double loss);
  /// Prints a line that stays.
  void line(const std::string& text);

 private:
  enum class Style { Bar, Lines };
  static Style choose_style();
  std::string describe(int epoch, std::size_t steps_done, const paceline::LiveFigures& live) const;

  const paceline::Recorder& recorder_;
  ProgressOptions options_;
  Style style_;
  double loss_ = 0;        // smoothed over some 20 steps
  std::size_t drawn_ = 0;  // columns of the bar that stands on the screen
  std::chrono::steady_clock::time_point next_;
};

}  // namespace fashion_mnist
