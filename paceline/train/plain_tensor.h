#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <span>

namespace paceline {

/// Whether the bytes at data_ptr() are a tensor's values. They are not where libtorch has only noted that they are to
/// be conjugated or negated, where a tensor of zeros has no memory, and in other layouts than strides.
inline bool is_plain(const torch::Tensor& tensor) {
  return tensor.layout() == torch::kStrided && !tensor.is_conj() && !tensor.is_neg() && !tensor._is_zerotensor();
}

/// The values of a dense tensor: itself, detached, where it is plain, else a copy that is.
inline torch::Tensor plain(const torch::Tensor& tensor) {
  if (is_plain(tensor) && !tensor.requires_grad()) return tensor;
  if (tensor._is_zerotensor()) return torch::zeros(tensor.sizes(), tensor.options().requires_grad(false));
  return tensor.detach().resolve_conj().resolve_neg();
}

/// The bytes of a tensor that is plain and has no gaps; as long as its storage lives.
inline std::span<const std::byte> bytes_of(const torch::Tensor& dense) {
  return {static_cast<const std::byte*>(dense.data_ptr()), dense.nbytes()};
}

}  // namespace paceline
