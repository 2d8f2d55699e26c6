#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paceline/sync/reducer.h"
#include "paceline/train/backward_watch.h"
#include "paceline/train/data_parallel.h"
#include "paceline/train/gradient_hooks.h"
#include "paceline/train/replica.h"

namespace paceline {

/// Between libtorch's hooks and the reducer: where gradients lie, and when a backward begins and ends.
struct DistributedDataParallel::State {
  State(torch::nn::Module& module, const Comm& with, DataParallelOptions options);
  ~State();

  // The gradient's way (gradient_round.cpp), in the order in which it happens.
  void on_gradient(std::size_t index);
  void begin_backward();
  void begin_round(std::uint32_t flags);
  void keep_gradient(std::size_t index);
  void take_gradient(std::size_t index);
  void before_launch(const BucketPiece& piece);
  void end_backward();
  void average();
  void finish_round();
  void contribute_absent(std::size_t index);
  void bind_slots();
  void move_gradients();

  // What must not be (gradient_checks.cpp).
  std::uint64_t require_averaged(std::uint64_t rounds_before);
  void require_fresh(std::size_t index);
  void require_dense(std::size_t index);
  void require_equal_passes();
  void require_still_frozen();
  [[noreturn]] void fail(ErrorCode code, const std::string& what);
  [[noreturn]] void fail_abandoned();
  [[noreturn]] void fail_changed(const std::string& name);

  const Comm comm;  // its own: models whose backwards interleave must not mix
  const DataParallelOptions options;
  const std::chrono::system_clock::time_point started = std::chrono::system_clock::now();
  const Replica replica;
  const std::vector<NamedTensor> parameters;  // those that are trained
  /// A world of one leaves gradients where libtorch puts them, unless they are to be changed on the way.
  const bool uses_slots;
  Reducer reducer;
  std::vector<torch::Tensor> slots;  // what grad() is, by parameter
  Recorder recorder;

  // Of the backward that runs.
  bool in_backward = false;
  bool averages = false;         // or only accumulates
  std::weak_ptr<char> backward;  // expires when it ends, however it ends

  // Of what has been accumulated since the last round.
  std::uint32_t passes = 0;
  double weight = 0;                  // the sum of theirs
  std::vector<std::uint8_t> pending;  // by parameter: grad() lies in its slot, not averaged yet
  int no_syncs = 0;                   // that live
  std::size_t accumulate = 1;
  std::optional<double> next_weight;
  double divisor = 1;                                         // Weighted: of what this rank sends off
  std::vector<std::uint32_t> versions;                        // Weighted: of the slots when they were averaged
  std::vector<std::pair<std::size_t, torch::Tensor>> absent;  // of this round, with the gradient that was there

  GradientHooks hooks;
  BackwardWatch watch;
};

}  // namespace paceline
