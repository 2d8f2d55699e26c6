#pragma once

#include "paceline/comm/comm_state.h"

namespace paceline {

/// What one operand holds: some parts of equal length, one after another or apart; a whole is one part.
struct StagedLayout {
  std::size_t parts, stride;  // stride in elements
};

/// An operation whose operands the engine does not reach, on copies of them of their size.
class StagedOperation {
 public:
  /// Copies what this rank puts in.
  StagedOperation(Comm::State& comm, const Operation& operation);
  const Operation& operation() const { return staged_; }
  /// Copies what it got to where it is wanted, once.
  void finish();

 private:
  void copy_parts(std::byte* to, const std::byte* from, StagedLayout layout, std::size_t extent);

  Comm::State& comm_;
  Operation wanted_, staged_;
  Buffer in_, out_;
  bool finished_ = false;
};

namespace staged {

/// True if the engine can carry it out from and to where the operands lie.
bool reaches_operands(const Comm::State& comm, const Operation& operation, Algorithm chosen);

/// Carries an operation out on any memory, and waits for it. Where the engine does not reach all operands, it goes in
/// pieces, which are the same on all ranks, and operands that it does not reach go through a small buffer: two copies
/// more.
void run(Comm::State& comm, const Operation& operation);

}  // namespace staged
}  // namespace paceline
