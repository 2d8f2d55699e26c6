#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paceline/train/data_parallel.h"
#include "paceline/train/torch_compat.h"

namespace paceline {

/// The wrapper that averages a parameter's gradient, for others that find its hook there. Expires with its hooks.
struct GradientOwner {
  std::string model;
  Reduction reduction;
  int world_size;
  std::int64_t group;  ///< The same on all ranks of the wrapper, another for each wrapper.
  /// How many backwards' gradients are accumulated and not averaged.
  std::function<std::uint32_t()> accumulated;
};

/// Calls `on_gradient(i, given)` whenever autograd has finished the gradient of parameter i; `given` is what was added
/// to it last. The hooks live on the parameters themselves, so it does not matter how the module is called.
class GradientHooks {
 public:
  GradientHooks(const std::vector<torch::Tensor>& parameters, GradientOwner owner,
                const std::function<void(std::size_t, const torch::Tensor&)>& on_gradient);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  /// Who averages the gradient of `parameter`; null where no wrapper does, also once the parameter was cast or moved:
  /// libtorch then gives it a new accumulator, without our hook.
  static std::shared_ptr<const GradientOwner> owner_of(const torch::Tensor& parameter);
  /// Whether these hooks still are on it.
  bool still_watches(std::size_t index, const torch::Tensor& parameter) const;

 private:
  struct Hook {
    compat::Accumulator accumulator;
    std::uintptr_t key;
  };
  std::vector<Hook> hooks_;
};

}  // namespace paceline
