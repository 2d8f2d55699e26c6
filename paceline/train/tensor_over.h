#pragma once

#include <torch/torch.h>

#include <span>

#include "paceline/base/dtype.h"

namespace paceline {

inline torch::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::Float32: return torch::kFloat32;
    case Dtype::Float64: return torch::kFloat64;
    case Dtype::Float16: return torch::kFloat16;
    case Dtype::BFloat16: return torch::kBFloat16;
    case Dtype::Int32: return torch::kInt32;
    case Dtype::Int64: return torch::kInt64;
    case Dtype::UInt8: return torch::kUInt8;
  }
  return torch::kUInt8;
}

/// A tensor of one dimension over memory that outlives it.
inline torch::Tensor tensor_over(Dtype dtype, std::span<std::byte> bytes) {
  return torch::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size() / size_of(dtype))}, scalar_type(dtype));
}

}  // namespace paceline
