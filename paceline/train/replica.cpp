#include "paceline/train/replica.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>

#include "paceline/base/hash.h"
#include "paceline/train/plain_tensor.h"

namespace paceline {
namespace {

std::string line_of(const char* kind, const NamedTensor& named) {
  std::string shape;
  for (const auto size : named.tensor.sizes()) shape += fmt::format("{}{}", shape.empty() ? "" : ", ", size);
  // Gradients have their parameter's layout.
  const std::string layout =
      named.tensor.is_contiguous() ? "" : fmt::format(" strides {}", fmt::join(named.tensor.strides(), ","));
  return fmt::format("{} '{}' {} [{}]{}{}\n", kind, named.name, c10::toString(named.tensor.scalar_type()), shape,
                     layout, named.tensor.requires_grad() ? "" : " frozen");
}

std::string describe(const Replica& replica) {
  std::string text;
  for (const NamedTensor& parameter : replica.parameters) text += line_of("parameter", parameter);
  for (const NamedTensor& buffer : replica.buffers) text += line_of("buffer", buffer);
  return text;
}

/// The lines of two texts where they first differ; "nothing" past an end.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  const auto line_at = [](const std::string& text, std::size_t begin) {
    if (begin >= text.size()) return std::string("nothing more");
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  const auto at = static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  const std::size_t newline = at == 0 ? std::string::npos : a.rfind('\n', at - 1);
  const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
  return {line_at(a, begin), line_at(b, begin)};
}

}  // namespace

Replica Replica::of(const torch::nn::Module& module) {
  Replica replica;
  std::unordered_map<const c10::TensorImpl*, std::string> first_names;
  const auto add = [&](std::vector<NamedTensor>& to, const auto& named_tensors) {
    for (const auto& item : named_tensors) {
      if (!item.value().defined()) continue;
      const auto [first, added] = first_names.emplace(item.value().unsafeGetTensorImpl(), item.key());
      if (added) to.push_back({item.key(), item.value()});
      else replica.aliases.emplace(item.key(), first->second);
    }
  };
  add(replica.parameters, module.named_parameters());
  add(replica.buffers, module.named_buffers());
  return replica;
}

void require_same_replica(const Comm& comm, const Replica& replica, const std::string& model,
                          const std::string& settings) {
  const std::string own = settings + '\n' + describe(replica);
  const std::uint64_t own_hash = hash_of(own);
  std::vector<std::int64_t> hashes(static_cast<std::size_t>(comm.world_size()));
  const auto sent = static_cast<std::int64_t>(own_hash);
  comm.all_gather<std::int64_t>(std::span(&sent, 1), hashes);
  const auto other = std::find_if(hashes.begin(), hashes.end(), [&](std::int64_t h) { return h != hashes[0]; });
  if (other == hashes.end()) return;
  const auto peer = static_cast<int>(other - hashes.begin());
  const auto texts = comm.gather(own);
  const auto [first, theirs] = first_difference(texts[0], texts[peer]);
  comm.fail({Fault::ModelsDiffer,
             fmt::format("model '{}' differs between ranks: rank 0 (signature {:016x}) has {} where rank {} (signature "
                         "{:016x}) has {}. Build the same module, with the same options, on all ranks",
                         model, static_cast<std::uint64_t>(hashes[0]), first, peer,
                         static_cast<std::uint64_t>(hashes[peer]), theirs),
             comm.rank(), peer});
}

void broadcast_replica(const Comm& comm, const Replica& replica, int root) {
  broadcast_tensors(comm, replica.parameters, root);
  broadcast_tensors(comm, replica.buffers, root);
}

void broadcast_tensors(const Comm& comm, const std::vector<NamedTensor>& tensors, int root) {
  if (comm.world_size() == 1) return;
  const torch::NoGradGuard no_grad;
  for (const NamedTensor& named : tensors) {
    torch::Tensor values = plain(named.tensor).contiguous();
    comm.broadcast(Dtype::UInt8, {static_cast<std::byte*>(values.data_ptr()), values.nbytes()}, root);
    if (values.data_ptr() != named.tensor.data_ptr()) named.tensor.detach().copy_(values);
  }
}

Dtype gradient_dtype(const NamedTensor& parameter) {
  if (parameter.tensor.device().is_cpu() && parameter.tensor.layout() == torch::kStrided) {
    switch (parameter.tensor.scalar_type()) {
      case torch::kFloat32: return Dtype::Float32;
      case torch::kFloat64: return Dtype::Float64;
      case torch::kFloat16: return Dtype::Float16;
      case torch::kBFloat16: return Dtype::BFloat16;
      default: break;
    }
  }
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("parameter '{}' ({} on {}) cannot be averaged: dense float, double, half and bfloat16 on the CPU "
                  "can. Freeze it with requires_grad_(false) before wrapping the module",
                  parameter.name, c10::toString(parameter.tensor.scalar_type()), parameter.tensor.device().str()));
}

}  // namespace paceline
