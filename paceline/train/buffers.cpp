// Buffers (batch norm's running statistics) of all ranks become equal, where the user wants that.
#include <algorithm>

#include "paceline/train/data_parallel_state.h"

namespace paceline {
namespace {

/// The values of several tensors in one, as `type`; empty where there are none.
torch::Tensor packed(const std::vector<torch::Tensor>& tensors, torch::ScalarType type) {
  std::vector<torch::Tensor> flat;
  for (const torch::Tensor& tensor : tensors) flat.push_back(tensor.detach().to(type).flatten());
  return flat.empty() ? torch::empty({0}, type) : torch::cat(flat);
}

void unpack(const torch::Tensor& from, const std::vector<torch::Tensor>& tensors) {
  std::int64_t at = 0;
  for (const torch::Tensor& tensor : tensors) {
    tensor.detach().copy_(from.slice(0, at, at + tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
}

}  // namespace

void DistributedDataParallel::State::sync_buffers(Buffers how, int root, double own_weight) {
  if (how == Buffers::Own || comm.world_size() == 1 || replica.buffers.empty()) return;
  const torch::NoGradGuard no_grad;
  if (how == Buffers::Broadcast) return broadcast_tensors(comm, replica.buffers, root);
  std::vector<torch::Tensor> averaged;
  std::vector<NamedTensor> others;  // counters and flags have no mean
  for (const NamedTensor& buffer : replica.buffers) {
    if (buffer.tensor.is_floating_point()) averaged.push_back(buffer.tensor);
    else others.push_back(buffer);
  }
  const torch::Tensor values = packed(averaged, torch::kFloat64);
  if (values.numel() > 0) {
    auto* data = static_cast<std::byte*>(values.data_ptr());
    comm.carry_out({.kind = Collective::AllReduce,
                    .dtype = Dtype::Float64,
                    .reduce = ReduceOp::Mean,
                    .count = static_cast<std::size_t>(values.numel()),
                    .in = data,
                    .out = data,
                    .weight = own_weight,
                    .label = "buffers"});
    unpack(values, averaged);
  }
  broadcast_tensors(comm, others, root);
}

}  // namespace paceline
