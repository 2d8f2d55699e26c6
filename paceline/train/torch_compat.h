#pragma once

// The one place that knows how libtorch versions may differ. Built and tested with 1.13.1, and by hand with 2.15
// (PyPI).

#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <sstream>
#include <type_traits>
#include <utility>

namespace paceline::compat {

using Accumulator = decltype(torch::autograd::impl::grad_accumulator(torch::Tensor()));

/// The node that adds to a leaf's grad(). Libtorch keeps it only as long as someone holds it.
inline Accumulator gradient_accumulator(const torch::Tensor& leaf) {
  return torch::autograd::impl::grad_accumulator(leaf);
}

/// A post hook that can be found again on its node.
template <class Tag>
class TaggedHook final : public torch::autograd::utils::LambdaPostHook {
 public:
  TaggedHook(std::shared_ptr<const Tag> with, std::function<void(const torch::Tensor&)> hook)
      : LambdaPostHook([hook = std::move(hook)](const List& outputs, const List& inputs) {
          hook(inputs.front());
          return outputs;
        }),
        tag(std::move(with)) {}

  const std::shared_ptr<const Tag> tag;

 private:
  using List = torch::autograd::variable_list;
};

/// Calls `hook` each time the node has run, with what it was given; returns a key for remove_post_hook().
template <class Tag>
std::uintptr_t add_post_hook(const Accumulator& node, std::shared_ptr<const Tag> tag,
                             std::function<void(const torch::Tensor&)> hook) {
  return node->add_post_hook(std::make_unique<TaggedHook<Tag>>(std::move(tag), std::move(hook)));
}

/// The tag of the first such hook of the node; null where it has none.
template <class Tag>
std::shared_ptr<const Tag> post_hook_tag(const Accumulator& node) {
  for (const auto& hook : node->post_hooks()) {
    if (const auto* tagged = dynamic_cast<const TaggedHook<Tag>*>(hook.get())) return tagged->tag;
  }
  return nullptr;
}

inline void remove_post_hook(const Accumulator& node, std::uintptr_t key) { node->del_post_hook(key); }

/// Calls `callback` at the end of the backward that runs; from within a hook only. It is destroyed, not called, if that
/// backward ends in an exception.
inline void at_end_of_backward(std::function<void()> callback) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
}

/// In a post hook of an accumulator that was given `given` and made a gradient of it without a copy: whether no other
/// tensor has their storage. Of a view, libtorch keeps what it is a view of.
inline bool is_only_use(const torch::Tensor& gradient, const torch::Tensor& given) {
  const bool view = given.is_view();
  return gradient.storage().use_count() == (view ? 3 : 2) && (!view || given._base().use_count() == 1);
}

/// Whether anyone but the holder of `tensor` has it, or another tensor over its storage.
inline bool is_held(const torch::Tensor& tensor) { return tensor.use_count() > 1 || tensor.storage().use_count() > 1; }

/// Moves the storage of a dense tensor, with all tensors that share it, to memory of its own.
inline void take_private_copy(const torch::Tensor& tensor) {
  const torch::Storage& storage = tensor.storage();
  at::DataPtr copy = c10::GetCPUAllocator()->allocate(storage.nbytes());
  std::memcpy(copy.get(), storage.data_ptr().get(), storage.nbytes());
  // As const as the handle is: libtorch counts on nobody else seeing a storage whose memory moves.
  storage.unsafeGetStorageImpl()->set_data_ptr(std::move(copy));
}

/// What libtorch's optimizers know a parameter's state by.
using StateKey = std::decay_t<decltype(std::declval<torch::optim::Optimizer&>().state())>::key_type;

template <class Key = StateKey>
Key state_key(const torch::Tensor& parameter) {
  if constexpr (std::is_pointer_v<Key>) {
    return parameter.unsafeGetTensorImpl();
  } else {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  }
}

/// An allocator of libtorch's, of which only obtain() and raw_deleter() differ from others.
class Allocator : public at::Allocator {
 public:
  virtual at::DataPtr obtain(std::size_t bytes) const = 0;

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
  at::DataPtr allocate(std::size_t bytes) final { return obtain(bytes); }
  void copy_data(void* to, const void* from, std::size_t bytes) const final { default_copy_data(to, from, bytes); }
#else
  at::DataPtr allocate(std::size_t bytes) const final { return obtain(bytes); }
#endif
};

}  // namespace paceline::compat
