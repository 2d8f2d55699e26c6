#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "paceline/base/timeline.h"
#include "paceline/observe/breakdown.h"
#include "paceline/observe/histogram.h"
#include "paceline/observe/rank_summary.h"

namespace paceline {

struct RecorderOptions {
  int rank = 0;
  /// Compute threads of this rank, e.g. at::get_num_threads(); 0 when not known. Lets findings see oversubscription.
  int threads = 0;
  /// First steps to leave out: they allocate, fill caches and time algorithms. If no more than these are run, the
  /// figures are over all steps, and the summary says warmup_steps = 0.
  std::uint64_t warmup_steps = 5;
  /// Steps over which live() averages.
  std::size_t live_steps = 20;
};

/// Figures over the last few steps, for a progress bar.
struct LiveFigures {
  std::uint64_t steps = 0;     ///< Steps recorded so far, warm-up included.
  double samples_per_s = 0;    ///< Of this rank. 0 before the first step, as are the others.
  double step_s = 0;           ///< Mean step time.
  double exposed_share = 0;    ///< Exposed communication / step.
  double data_wait_share = 0;  ///< Waiting for data / step.
};

/// Folds the training steps of one rank into its summary, in memory that does not grow with the run (about 60 KB).
/// Used from the training thread only. Neither reads clocks nor communicates.
class Recorder {
 public:
  /// Becomes a sink of `timeline`, which must outlive the recorder.
  explicit Recorder(Timeline& timeline, RecorderOptions options = {});
  /// Detaches from the timeline.
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Notes what others have found. Of findings with one id the first is kept, so a condition may be reported anew in
  /// each step.
  void add_finding(Finding finding);

  /// The steps so far; the one that runs counts from its end. Reads the peak memory at the time of the call.
  RankSummary summary() const;
  LiveFigures live() const;

 private:
  struct Totals {
    std::uint64_t steps = 0;
    StepBreakdown sum;
    double samples = 0;
    DurationHistogram times;

    void add(const StepBreakdown& step, double step_samples);
  };
  struct LiveStep {
    double step_s, exposed_s, data_wait_s, samples;
  };

  void add(const StepEvents& events);

  Timeline& timeline_;
  std::uint64_t sink_;  ///< Its key there.
  RecorderOptions options_;
  Totals warmup_;
  Totals measured_;
  std::vector<LiveStep> live_;  ///< A ring once it holds options_.live_steps.
  std::vector<Finding> findings_;
};

}  // namespace paceline
