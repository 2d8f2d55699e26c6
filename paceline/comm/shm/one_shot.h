#pragma once

#include <vector>

#include "paceline/comm/operation.h"
#include "paceline/comm/shm/view.h"

namespace paceline {

/// Collectives whose inputs ride in the slots: once all ranks have entered, each makes its own result from them, and is
/// done. One synchronisation; operands may lie anywhere. After the one-shot all-reduce of vLLM's and DeepSpeed's
/// shared-memory paths, with the payload in the flag's cache line as Open MPI's xhc has it.
class ShmOneShot {
 public:
  explicit ShmOneShot(const ShmView& view)
      : view_(view), sources_(view.segments.size()), weights_(view.segments.size()) {}

  /// True if every rank's input fits into `bytes`, which a slot has at most. The same on all ranks.
  static bool fits(const Operation& operation, int world_size, std::size_t bytes);
  /// Copies this rank's input to its slot.
  void put_input(const Operation& operation, Slot& slot) const;
  void finish(const Operation& operation, std::uint64_t number);

 private:
  const std::byte* input(int of, std::uint64_t number) const { return view_.slot(of, number).payload; }
  void reduce_inputs(const Operation& operation, std::uint64_t number, std::size_t from, std::size_t count);

  const ShmView& view_;
  // Scratch, kept so that a steady step allocates nothing.
  std::vector<const std::byte*> sources_;
  std::vector<double> weights_;
};

}  // namespace paceline
