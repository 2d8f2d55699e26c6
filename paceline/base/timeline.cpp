#include "paceline/base/timeline.h"

#include <utility>

namespace paceline {

std::uint64_t Timeline::add_sink(Sink sink) {
  sinks_.emplace_back(++last_sink_, std::move(sink));
  return last_sink_;
}

void Timeline::remove_sink(std::uint64_t key) {
  std::erase_if(sinks_, [key](const auto& sink) { return sink.first == key; });
}

void Timeline::set_sink(Sink sink) {
  sinks_.clear();
  add_sink(std::move(sink));
}

void Timeline::begin_step(Phase phase) {
  if (accumulating_) {
    accumulating_ = false;
    return enter(phase);
  }
  const Nanoseconds at = now();
  close_step(at);
  phase_ = phase;
  since_ = at;
  trained_ = phase == Phase::Optimizer;
}

void Timeline::pause() {
  close_step(now());
  accumulating_ = false;
  phase_ = Phase::Outside;
}

void Timeline::enter(Phase phase) {
  if (phase_ == Phase::Outside || phase == phase_ || phase == Phase::Outside) return;
  const Nanoseconds at = now();
  events_.phases.push_back({phase_, since_, at});
  phase_ = phase;
  since_ = at;
  trained_ |= phase == Phase::Optimizer;
}

void Timeline::add_operation(OperationInterval operation) {
  if (in_step()) events_.operations.push_back(std::move(operation));
}

void Timeline::add_samples(double samples) {
  if (in_step()) events_.samples += samples;
}

void Timeline::close_step(Nanoseconds at) {
  if (in_step()) events_.phases.push_back({phase_, since_, at});
  for (const auto& [key, sink] : sinks_) {
    if (trained_ && sink) sink(events_);
  }
  events_.phases.clear();
  events_.operations.clear();
  events_.samples = 0;
  trained_ = false;
}

}  // namespace paceline
