#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "paceline/train/torch_compat.h"

namespace paceline {

/// Calls `on_gradient(i, given)` whenever autograd has finished the gradient of parameter i; `given` is what was added
/// to it last. The hooks live on the parameters
/// themselves, so it does not matter how the module is called.
class GradientHooks {
 public:
  GradientHooks(const std::vector<torch::Tensor>& parameters,
                const std::function<void(std::size_t, const torch::Tensor&)>& on_gradient);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  /// False once the parameter was cast or moved: libtorch then gives it a new accumulator, without our hook.
  bool still_watches(std::size_t index, const torch::Tensor& parameter) const;

 private:
  struct Hook {
    compat::Accumulator accumulator;
    std::uintptr_t key;
  };
  std::vector<Hook> hooks_;
};

}  // namespace paceline
