#include "paceline/train/ddp/gradient_hooks.h"

namespace paceline {

GradientHooks::GradientHooks(const std::vector<torch::Tensor>& parameters, GradientOwner owner,
                             const std::function<void(std::size_t, const torch::Tensor&)>& on_gradient) {
  const auto tag = std::make_shared<const GradientOwner>(std::move(owner));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto accumulator = compat::gradient_accumulator(parameters[i]);
    hooks_.push_back(
        {accumulator, compat::add_post_hook(accumulator, tag,
                                            [on_gradient, i](const torch::Tensor& given) { on_gradient(i, given); })});
  }
}

GradientHooks::~GradientHooks() {
  for (const Hook& hook : hooks_) compat::remove_post_hook(hook.accumulator, hook.key);
}

std::shared_ptr<const GradientOwner> GradientHooks::owner_of(const torch::Tensor& parameter) {
  if (!parameter.requires_grad()) return nullptr;
  return compat::post_hook_tag<GradientOwner>(compat::gradient_accumulator(parameter));
}

bool GradientHooks::still_watches(std::size_t index, const torch::Tensor& parameter) const {
  return parameter.requires_grad() && compat::gradient_accumulator(parameter) == hooks_[index].accumulator;
}

}  // namespace paceline
