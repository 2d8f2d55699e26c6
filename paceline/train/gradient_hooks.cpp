#include "paceline/train/gradient_hooks.h"

namespace paceline {

GradientHooks::GradientHooks(const std::vector<torch::Tensor>& parameters,
                             const std::function<void(std::size_t, const torch::Tensor&)>& on_gradient) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto accumulator = compat::gradient_accumulator(parameters[i]);
    hooks_.push_back({accumulator, compat::add_post_hook(accumulator, [on_gradient, i](const torch::Tensor& given) {
                        on_gradient(i, given);
                      })});
  }
}

GradientHooks::~GradientHooks() {
  for (const Hook& hook : hooks_) compat::remove_post_hook(hook.accumulator, hook.key);
}

bool GradientHooks::still_watches(std::size_t index, const torch::Tensor& parameter) const {
  return parameter.requires_grad() && compat::gradient_accumulator(parameter) == hooks_[index].accumulator;
}

}  // namespace paceline
