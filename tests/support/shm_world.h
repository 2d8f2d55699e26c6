// Shared-memory engines of a world of threads, driven rank by rank from one thread or several.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "paceline/comm/shm/engine.h"

namespace paceline::test {

class ShmWorld {
 public:
  explicit ShmWorld(int world_size, Nanoseconds timeout = std::chrono::seconds(60))
      : segments_(make_thread_segments(world_size)) {
    for (int rank = 0; rank < world_size; ++rank) {
      engines_.push_back(std::make_unique<ShmEngine>(group(rank), "world", timeout));
    }
  }

  ShmGroup group(int rank) const {
    ShmGroup group;
    group.rank = rank;
    group.segments = segments_;
    group.links.resize(segments_.size());
    return group;
  }
  ShmEngine& engine(int rank) const { return *engines_[static_cast<std::size_t>(rank)]; }
  /// The rank ends its communicator.
  void end(int rank) { engines_[static_cast<std::size_t>(rank)].reset(); }

  RankControl& control(int rank) const { return group(0).control(rank); }
  /// Returns once this rank sleeps in a wait.
  void until_asleep(int rank) const {
    const Deadline deadline(std::chrono::seconds(60));
    while (control(rank).sleeping.load() == 0) {
      ASSERT_FALSE(deadline.passed()) << "rank " << rank << " does not sleep";
      sched_yield();
    }
  }

 private:
  std::vector<std::shared_ptr<Segment>> segments_;
  std::vector<std::unique_ptr<ShmEngine>> engines_;
};

/// A sum in place over this memory.
inline Operation sum_of(std::byte* data, std::size_t floats, Algorithm algorithm = Algorithm::Auto) {
  return {.kind = Collective::AllReduce,
          .dtype = Dtype::Float32,
          .algorithm = algorithm,
          .count = floats,
          .in = data,
          .out = data};
}

inline std::uint64_t start(ShmEngine& engine, const Operation& operation) {
  return engine.start(operation, engine.algorithm(operation));
}

inline std::span<float> floats_of(const Buffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data()), buffer.bytes() / sizeof(float)};
}

}  // namespace paceline::test
