#pragma once

// The one place that knows how libtorch versions may differ. Built and tested with 1.13.1.

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <utility>

namespace paceline::compat {

using Accumulator = std::shared_ptr<torch::autograd::Node>;

/// The node that adds to a leaf's grad(). Libtorch keeps it only as long as someone holds it.
inline Accumulator gradient_accumulator(const torch::Tensor& leaf) {
  return torch::autograd::impl::grad_accumulator(leaf);
}

/// Calls `hook` each time the node has run; returns a key for remove_post_hook().
inline std::uintptr_t add_post_hook(const Accumulator& node, std::function<void()> hook) {
  using List = torch::autograd::variable_list;
  return node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [hook = std::move(hook)](const List& outputs, const List&) {
        hook();
        return outputs;
      }));
}

inline void remove_post_hook(const Accumulator& node, std::uintptr_t key) { node->del_post_hook(key); }

/// Calls `callback` at the end of the backward that runs; from within a hook only. It is destroyed, not called, if that
/// backward ends in an exception.
inline void at_end_of_backward(std::function<void()> callback) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
}

}  // namespace paceline::compat
