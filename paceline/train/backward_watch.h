#pragma once

#include <cstdint>

#include "paceline/base/timeline.h"

namespace paceline {

/// Moves a timeline from Forward to Backward when autograd runs its first node on this thread. Libtorch calls a plain
/// function there, so it finds timelines through a thread-local list. Destroy on the thread that constructed it.
class BackwardWatch {
 public:
  explicit BackwardWatch(Timeline& timeline);
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

 private:
  Timeline& timeline_;
  std::uint64_t handle_;
};

}  // namespace paceline
