#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "paceline/comm/comm.h"

namespace paceline {

/// What every rank tells the others about a step before its first bucket. Fixed bytes, the same on all ranks' machines.
struct StepPrologue {
  static constexpr std::uint32_t kEnded = 1;  // this rank has no more data: it only takes part
  static constexpr std::uint32_t kStop = 2;   // this rank asks all to stop after this step
  static constexpr std::uint32_t kLoss = 4;   // the losses of all ranks are exchanged after this round
  static constexpr std::uint32_t kFlags = kEnded | kStop | kLoss;

  std::uint64_t step;       // of this model; ranks must agree
  std::uint64_t signature;  // of the bucket plan; ranks must agree
  double weight;            // of this rank in the mean
  std::uint32_t backwards;  // whose gradients it has added up
  std::uint32_t flags;
  std::uint64_t changes;  // in place, of parameters since its last step; what differs is a reason to compare replicas
};

/// And after its last.
struct StepEpilogue {
  std::uint64_t absent;         // parameters that took no part in this rank's backward
  std::uint64_t gradient_hash;  // of the first bucket as this rank computed it; 0 where it was not taken
  std::uint64_t bad_parameter;  // 1 + the first whose gradient was not finite on this rank; 0 for none
  std::uint64_t state_hash;     // of the replica after an earlier step; 0 where it was not taken
};

/// Exchanges one half of the header among all ranks without blocking.
template <class Half>
class HeaderExchange {
 public:
  explicit HeaderExchange(const Comm& comm)
      : comm_(comm), all_(comm.allocate((static_cast<std::size_t>(comm.world_size()) + 1) * sizeof(Half))) {}

  void start(const Half& own, const char* label) {
    all()[comm_.world_size()] = own;
    if (comm_.world_size() == 1) all()[0] = own;
    work_ = comm_.start({.kind = Collective::AllGather,
                         .dtype = Dtype::UInt8,
                         .count = sizeof(Half),
                         .in = reinterpret_cast<const std::byte*>(all() + comm_.world_size()),
                         .out = all_.data(),
                         .label = label});
  }
  /// Blocks; the halves of all ranks.
  std::span<const Half> wait() {
    work_.wait();
    return {all(), static_cast<std::size_t>(comm_.world_size())};
  }

 private:
  Half* all() const { return reinterpret_cast<Half*>(all_.data()); }

  Comm comm_;
  Buffer all_;
  Comm::Work work_;
};

}  // namespace paceline
