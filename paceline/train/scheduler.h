#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace paceline {

/// A libtorch learning-rate scheduler (torch::optim::StepLR, or a class of the program's own) whose step can be saved.
/// A checkpoint holds each parameter group's learning rate, as part of the optimizer; what a scheduler counts is hidden
/// in it, and goes into JobState::numbers:
///
///     paceline::Scheduler<torch::optim::StepLR> scheduler(optimizer, 30, 0.1);
///     if (paceline::load(folder, ddp, job)) scheduler.resume_at(job.numbers["scheduler"]);
///     ...
///     job.numbers["scheduler"] = scheduler.steps();
///     paceline::save(folder, ddp, job);
template <class Base>
class Scheduler final : public Base {
 public:
  using Base::Base;

  /// How often step() was called, also before resume_at().
  std::uint32_t steps() const { return this->step_count_; }
  /// The next step() is number `steps`. Changes no learning rate: load() has brought them.
  void resume_at(double steps) { this->step_count_ = static_cast<unsigned>(steps); }
};

}  // namespace paceline
