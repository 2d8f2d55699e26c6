#include "paceline/observe/breakdown.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "paceline/observe/intervals.h"

namespace paceline {
namespace {

double& part(StepBreakdown& parts, Phase phase);
void add_communication(StepBreakdown& result, const StepEvents& events);

}  // namespace

StepBreakdown breakdown(const StepEvents& events) {
  // Whole nanoseconds are summed before they become seconds, so that many short phases lose nothing.
  constexpr std::size_t kPhases = 7;
  Nanoseconds totals[kPhases] = {};
  for (const PhaseInterval& phase : events.phases) {
    totals[static_cast<std::size_t>(phase.phase)] += phase.end - phase.begin;
  }
  StepBreakdown result;
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    part(result, static_cast<Phase>(phase)) += seconds(totals[phase]);
  }
  add_communication(result, events);
  return result;
}

namespace {

double& part(StepBreakdown& parts, Phase phase) {
  switch (phase) {
    case Phase::DataWait: return parts.data_wait_s;
    case Phase::Forward: return parts.forward_s;
    case Phase::Backward: return parts.backward_s;
    case Phase::Communication: return parts.exposed_comm_s;
    case Phase::Optimizer: return parts.optimizer_s;
    case Phase::Other:
    case Phase::Outside: break;  // A step has no Outside; were there one, the parts still had to add up.
  }
  return parts.other_s;
}

/// Splits the exposed communication of `result` and adds the hidden one.
void add_communication(StepBreakdown& result, const StepEvents& events) {
  std::vector<Interval> compute, exposed;
  for (const PhaseInterval& phase : events.phases) {
    if (phase.phase == Phase::Communication) {
      exposed.push_back({phase.begin, phase.end});
    } else if (phase.phase != Phase::DataWait) {
      compute.push_back({phase.begin, phase.end});
    }
  }

  std::vector<Interval> under_way, arriving, moving;
  for (const OperationInterval& operation : events.operations) {
    const Nanoseconds completed = std::max(operation.launched, operation.completed);
    const Nanoseconds arrival = std::clamp(operation.last_arrival, operation.launched, completed);
    under_way.push_back({operation.launched, completed});
    arriving.push_back({operation.launched, arrival});
    moving.push_back({arrival, completed});
    result.reducing_s += seconds(operation.working);
    result.comm_bytes += static_cast<double>(operation.bytes);
    result.operations += 1;
  }

  const IntervalSet waiting = subtract(IntervalSet(std::move(arriving)), IntervalSet(std::move(moving)));
  const Nanoseconds hidden = intersect(IntervalSet(std::move(under_way)), IntervalSet(std::move(compute))).length();
  result.hidden_comm_s = seconds(hidden);
  result.wait_for_peers_s = seconds(intersect(waiting, IntervalSet(std::move(exposed))).length());
  result.transfer_s = std::max(0.0, result.exposed_comm_s - result.wait_for_peers_s);
}

}  // namespace

StepBreakdown& StepBreakdown::operator+=(const StepBreakdown& more) {
  data_wait_s += more.data_wait_s;
  forward_s += more.forward_s;
  backward_s += more.backward_s;
  exposed_comm_s += more.exposed_comm_s;
  optimizer_s += more.optimizer_s;
  other_s += more.other_s;
  hidden_comm_s += more.hidden_comm_s;
  wait_for_peers_s += more.wait_for_peers_s;
  transfer_s += more.transfer_s;
  reducing_s += more.reducing_s;
  comm_bytes += more.comm_bytes;
  operations += more.operations;
  return *this;
}

StepBreakdown& StepBreakdown::operator/=(double divisor) {
  data_wait_s /= divisor;
  forward_s /= divisor;
  backward_s /= divisor;
  exposed_comm_s /= divisor;
  optimizer_s /= divisor;
  other_s /= divisor;
  hidden_comm_s /= divisor;
  wait_for_peers_s /= divisor;
  transfer_s /= divisor;
  reducing_s /= divisor;
  comm_bytes /= divisor;
  operations /= divisor;
  return *this;
}

}  // namespace paceline
