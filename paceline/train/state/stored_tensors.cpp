#include "paceline/train/state/stored_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "paceline/train/plain_tensor.h"

namespace paceline {
namespace {

constexpr std::pair<torch::ScalarType, const char*> kTypes[] = {
    {torch::kFloat64, "F64"}, {torch::kFloat32, "F32"}, {torch::kFloat16, "F16"}, {torch::kBFloat16, "BF16"},
    {torch::kInt64, "I64"},   {torch::kInt32, "I32"},   {torch::kInt16, "I16"},   {torch::kInt8, "I8"},
    {torch::kUInt8, "U8"},    {torch::kBool, "BOOL"}};

std::string describe(const std::string& name, const torch::Tensor& tensor) {
  return fmt::format("'{}' {} [{}]", name, c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

/// Adds "what a, b, c and 5 more" to `message`.
void list(std::string& message, const char* what, const std::vector<std::string>& items) {
  constexpr std::size_t kShown = 4;
  if (items.empty()) return;
  const auto shown = std::min(items.size(), kShown);
  message +=
      fmt::format("{}{} {}", message.empty() ? "" : "; ", what, fmt::join(items.begin(), items.begin() + shown, ", "));
  if (items.size() > shown) message += fmt::format(" and {} more", items.size() - shown);
}

}  // namespace

std::vector<StoredTensor> stored(const std::vector<NamedTensor>& tensors, std::vector<torch::Tensor>& keep) {
  std::vector<StoredTensor> result;
  for (const NamedTensor& named : tensors) {
    const auto type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const auto& t) { return t.first == named.tensor.scalar_type(); });
    if (type == std::end(kTypes) || named.tensor.layout() != torch::kStrided) {
      throw Error(ErrorCode::InvalidArgument, fmt::format("{} cannot be saved: its type is not known to safetensors",
                                                          describe(named.name, named.tensor)));
    }
    keep.push_back(plain(named.tensor).contiguous());
    StoredTensor tensor{.name = named.name, .dtype = type->second, .shape = {}, .data = {}};
    for (const std::int64_t extent : named.tensor.sizes()) tensor.shape.push_back(static_cast<std::uint64_t>(extent));
    tensor.data = {static_cast<const std::byte*>(keep.back().data_ptr()), keep.back().nbytes()};
    result.push_back(std::move(tensor));
  }
  return result;
}

std::vector<NamedTensor> tensors_in(const SafetensorsFile& file) {
  std::vector<NamedTensor> result;
  for (const StoredTensor& tensor : file.tensors) {
    const auto type =
        std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& t) { return tensor.dtype == t.second; });
    if (type == std::end(kTypes)) {
      throw Error(ErrorCode::Corrupt,
                  fmt::format("tensor '{}' has type {}, which libtorch does not have", tensor.name, tensor.dtype));
    }
    std::vector<std::int64_t> shape(tensor.shape.begin(), tensor.shape.end());
    // Not by from_blob: the format does not promise alignment.
    torch::Tensor copy = torch::empty(shape, type->first);
    std::copy(tensor.data.begin(), tensor.data.end(), static_cast<std::byte*>(copy.data_ptr()));
    result.push_back({tensor.name, std::move(copy)});
  }
  return result;
}

void require_same_tensors(const std::vector<NamedTensor>& have, const std::vector<NamedTensor>& wanted,
                          const std::string& what) {
  const TensorIndex had(have), expected(wanted);
  std::vector<std::string> missing, extra, different;
  for (const NamedTensor& named : wanted) {
    const torch::Tensor* found = had.find(named.name);
    if (found == nullptr) {
      missing.push_back("'" + named.name + "'");
    } else if (found->sizes() != named.tensor.sizes() || found->scalar_type() != named.tensor.scalar_type()) {
      different.push_back(
          fmt::format("{} where {} was expected", describe(named.name, *found), describe(named.name, named.tensor)));
    }
  }
  for (const NamedTensor& named : have) {
    if (expected.find(named.name) == nullptr) extra.push_back("'" + named.name + "'");
  }
  std::string message;
  list(message, "it lacks", missing);
  list(message, "it has", different);
  list(message, "it has in addition", extra);
  if (!message.empty())
    throw Error(ErrorCode::InvalidArgument, fmt::format("{} is of another model: {}", what, message));
}

TensorIndex::TensorIndex(const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& named : tensors) by_name_.emplace(named.name, &named.tensor);
}

const torch::Tensor* TensorIndex::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

}  // namespace paceline
