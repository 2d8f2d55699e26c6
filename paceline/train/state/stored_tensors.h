#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "paceline/data/safetensors.h"
#include "paceline/train/replica.h"

namespace paceline {

/// Tensors as a safetensors file holds them. `keep` gets what the spans point into where a tensor is not contiguous.
/// Throws InvalidArgument naming a tensor whose type the format does not have.
std::vector<StoredTensor> stored(const std::vector<NamedTensor>& tensors, std::vector<torch::Tensor>& keep);

/// The other way, in memory of their own. Throws Corrupt for types that libtorch does not have.
std::vector<NamedTensor> tensors_in(const SafetensorsFile& file);

/// Throws InvalidArgument, listing the first few of each kind, unless `have` holds tensors of the names, shapes and
/// types of `wanted` and no others. `what` stands in the message.
void require_same_tensors(const std::vector<NamedTensor>& have, const std::vector<NamedTensor>& wanted,
                          const std::string& what);

/// Tensors by name, however many there are. Points into what it was made of.
class TensorIndex {
 public:
  explicit TensorIndex(const std::vector<NamedTensor>& tensors);

  /// Null where there is none of this name.
  const torch::Tensor* find(const std::string& name) const;
  /// The one of this name; there must be one.
  const torch::Tensor& at(const std::string& name) const { return *by_name_.at(name); }

 private:
  std::unordered_map<std::string_view, const torch::Tensor*> by_name_;
};

}  // namespace paceline
