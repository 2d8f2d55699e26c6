#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "paceline/base/clock.h"

namespace paceline {

/// What the training thread is doing. It is in exactly one phase at any time, so a step's phases add up to the step.
enum class Phase : std::uint8_t {
  Outside,        ///< Not in a training step: set-up, evaluation, between epochs.
  DataWait,       ///< Inside the loader, waiting for a batch.
  Forward,        ///< From the batch's delivery to the first node of backward.
  Backward,       ///< Autograd at work.
  Communication,  ///< Inside a collective: reducing, or waiting for peers. Exposed, since this thread computes nothing.
  Optimizer,      ///< zero_grad() and step().
  Other,          ///< In a step, but in none of the above: between backward and step(), between step() and the loader.
};

struct PhaseInterval {
  Phase phase;
  Nanoseconds begin, end;
};

/// One collective of a step, as this rank saw it. From `last_arrival` on every rank had entered it, so the time before
/// is waiting for peers and the time after is transfer.
struct OperationInterval {
  Nanoseconds launched, last_arrival, completed;
  std::uint64_t bytes;
  std::string label;
  Nanoseconds working{};  ///< How long this rank moved and added up its share; 0 where that is not known.
};

/// All that happened in one training step of one rank.
struct StepEvents {
  std::vector<PhaseInterval> phases;          ///< In order, without gaps: each begins where the one before ends.
  std::vector<OperationInterval> operations;  ///< In launch order; intervals may overlap.
  double samples = 0;                         ///< Samples this rank read.
};

/// Collects the events of the current step and hands each finished training step to its sinks. One per rank, shared by
/// the loader, the reducer and the optimizer through the rank's Comm. Used from the training thread only.
///
/// A step begins at begin_step() and ends at the next begin_step() or pause(). One that never entered Optimizer is not
/// a training step and is dropped. Steady steps allocate nothing once the vectors have grown.
class Timeline {
 public:
  using Sink = std::function<void(const StepEvents&)>;

  /// Each sink gets all steps. The events passed to it are only valid during the call. Returns what removes it.
  std::uint64_t add_sink(Sink sink);
  void remove_sink(std::uint64_t key);
  /// Replaces all sinks by this one.
  void set_sink(Sink sink);

  /// Ends the running step, if any, and begins one in `phase`; while accumulating, the running one goes on instead.
  void begin_step(Phase phase);
  /// Whether the last backward's gradients are to be added to by the next one, of the same step.
  void set_accumulating(bool accumulating) { accumulating_ = accumulating && in_step(); }
  /// Ends the running step, if any; time goes to Outside until the next begin_step().
  void pause();
  /// Goes over to `phase`. Does nothing while Outside, so evaluation is never taken for training.
  void enter(Phase phase);
  Phase phase() const { return phase_; }
  bool in_step() const { return phase_ != Phase::Outside; }

  /// A loader says so when it will begin the steps. Without one they begin where the optimizer ends, and waiting for
  /// data cannot be told from forward.
  void set_steps_begin_in_loader() { steps_begin_in_loader_ = true; }
  /// The optimizer has stepped.
  void end_of_update() {
    if (!steps_begin_in_loader_) begin_step(Phase::Forward);
  }

  void add_operation(OperationInterval operation);
  void add_samples(double samples);

 private:
  void close_step(Nanoseconds at);

  std::vector<std::pair<std::uint64_t, Sink>> sinks_;
  std::uint64_t last_sink_ = 0;
  StepEvents events_;
  Phase phase_ = Phase::Outside;
  Nanoseconds since_{};
  bool trained_ = false;
  bool accumulating_ = false;
  bool steps_begin_in_loader_ = false;
};

/// Enters a phase for a scope and goes back to the one before.
class ScopedPhase {
 public:
  ScopedPhase(Timeline& timeline, Phase phase) : timeline_(timeline), before_(timeline.phase()) {
    timeline_.enter(phase);
  }
  ~ScopedPhase() { timeline_.enter(before_); }
  ScopedPhase(const ScopedPhase&) = delete;
  ScopedPhase& operator=(const ScopedPhase&) = delete;

 private:
  Timeline& timeline_;
  Phase before_;
};

}  // namespace paceline
