#pragma once

#include <chrono>
#include <memory>
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

  void on_gradient(std::size_t index);
  void begin_round();
  void take_gradient(std::size_t index);
  void finish_round();
  void contribute_absent(std::size_t index);
  void bind_slots();
  void move_gradients();
  std::uint64_t require_averaged(std::uint64_t rounds_before);
  [[noreturn]] void fail_abandoned();
  void require_still_frozen();
  [[noreturn]] void fail_changed(const std::string& name);

  const Comm comm;  // its own: models whose backwards interleave must not mix
  const DataParallelOptions options;
  const std::chrono::system_clock::time_point started = std::chrono::system_clock::now();
  const Replica replica;
  const std::vector<NamedTensor> parameters;  // those that are trained
  Reducer reducer;
  std::vector<torch::Tensor> slots;  // what grad() is, by parameter
  Recorder recorder;

  std::weak_ptr<char> backward;  // expires when the backward of this round ends, however it ends
  std::vector<std::pair<std::size_t, torch::Tensor>> absent;  // with the gradient that was there

  GradientHooks hooks;
  BackwardWatch watch;
};

}  // namespace paceline
