#pragma once

#include "paceline/base/timeline.h"

namespace paceline {

/// Where the time of one step of one rank went, or the mean of that over steps or ranks. Times are in seconds.
///
/// The first six are the parts of the step: the training thread is in exactly one phase at any time, so they add up to
/// it. The others look at the same time from another side and are not added.
///
/// With C the time in Phase::Communication, K the time in Forward, Backward, Optimizer or Other, and for each operation
/// [launched, completed], [launched, last_arrival] and [last_arrival, completed] united over all operations as M, A
/// and T, where |X| is the length of X:
///
///     exposed_comm_s   = |C|             this thread does nothing but communicate
///     hidden_comm_s    = |M and K|       communication under way while this thread computes
///     wait_for_peers_s = |C and (A - T)| exposed, and nothing moves because a rank has not arrived
///     transfer_s       = exposed_comm_s - wait_for_peers_s
///
/// A - T rather than A: with several operations under way, one that transfers is what the step waits for, even if the
/// next is not yet joined by all; it would take as long had every rank been punctual. Communication under way while the
/// thread waits for data is neither hidden nor exposed: without it the wait would be as long.
struct StepBreakdown {
  double data_wait_s = 0;
  double forward_s = 0;
  double backward_s = 0;
  double exposed_comm_s = 0;
  double optimizer_s = 0;
  double other_s = 0;

  double hidden_comm_s = 0;
  double wait_for_peers_s = 0;
  double transfer_s = 0;
  double reducing_s = 0;  ///< This rank moves and adds up its share, exposed or not; 0 where that is not known.
  double comm_bytes = 0;  ///< Payload of the operations, as OperationInterval::bytes counts it.
  double operations = 0;  ///< Collectives launched.

  /// The sum of the parts: the step's wall time.
  double step_s() const { return data_wait_s + forward_s + backward_s + exposed_comm_s + optimizer_s + other_s; }
  /// The time in which this rank keeps the others waiting: all but exposed communication.
  double busy_s() const { return data_wait_s + forward_s + backward_s + optimizer_s + other_s; }

  StepBreakdown& operator+=(const StepBreakdown& more);
  StepBreakdown& operator/=(double divisor);
};

/// The breakdown of one step. Operations are clipped to the step: one that began in an earlier step (staleness) or ends
/// in a later one counts here only for its share of this one. A `last_arrival` outside of [launched, completed], as
/// clocks of two hosts may yield, is taken as the nearer end.
StepBreakdown breakdown(const StepEvents& events);

}  // namespace paceline
