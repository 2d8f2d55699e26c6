// Buffers (batch norm's running statistics) of all ranks become equal, where the user wants that.
#include <algorithm>

#include "paceline/train/ddp/data_parallel_state.h"
#include "paceline/train/plain_tensor.h"

namespace paceline {
namespace {

/// The values of several buffers in one, as `type`; empty where there are none.
torch::Tensor packed(const std::vector<NamedTensor>& buffers, torch::ScalarType type) {
  std::vector<torch::Tensor> flat;
  for (const NamedTensor& buffer : buffers) flat.push_back(plain(buffer.tensor).to(type).flatten());
  return flat.empty() ? torch::empty({0}, type) : torch::cat(flat);
}

/// Running statistics are not part of a graph, so that libtorch's batch norm changes them without counting a version; a
/// backward of another forward may be still to come. Others may be in one, and what has not changed is not touched.
void set_values(const NamedTensor& buffer, const torch::Tensor& values) {
  if (values.equal(plain(buffer.tensor))) return;
  const bool statistics = buffer.name.ends_with("running_mean") || buffer.name.ends_with("running_var");
  (statistics ? buffer.tensor.variable_data() : buffer.tensor.detach()).copy_(values);
}

void unpack(const torch::Tensor& from, const std::vector<NamedTensor>& buffers) {
  std::int64_t at = 0;
  for (const NamedTensor& buffer : buffers) {
    const auto count = buffer.tensor.numel();
    set_values(buffer, from.slice(0, at, at + count).view(buffer.tensor.sizes()).to(buffer.tensor.scalar_type()));
    at += count;
  }
}

void broadcast_buffers(const Comm& comm, const std::vector<NamedTensor>& buffers, int root) {
  std::vector<NamedTensor> received;
  for (const NamedTensor& buffer : buffers) received.push_back({buffer.name, plain(buffer.tensor).clone()});
  broadcast_tensors(comm, received, root);
  for (std::size_t i = 0; i < buffers.size(); ++i) set_values(buffers[i], received[i].tensor);
}

}  // namespace

void DistributedDataParallel::State::sync_buffers(Buffers how, int root, double own_weight) {
  if (how == Buffers::Own || comm.world_size() == 1 || replica.buffers.empty()) return;
  const torch::NoGradGuard no_grad;
  if (how == Buffers::Broadcast) return broadcast_buffers(comm, replica.buffers, root);
  std::vector<NamedTensor> averaged;
  std::vector<NamedTensor> others;  // counters and flags have no mean
  for (const NamedTensor& buffer : replica.buffers) {
    if (buffer.tensor.is_floating_point()) averaged.push_back(buffer);
    else others.push_back(buffer);
  }
  const torch::Tensor values = packed(averaged, torch::kFloat64);
  if (values.numel() > 0) {
    auto* data = static_cast<std::byte*>(values.data_ptr());
    comm.run({.kind = Collective::AllReduce,
              .dtype = Dtype::Float64,
              .reduce = ReduceOp::Mean,
              .count = static_cast<std::size_t>(values.numel()),
              .in = data,
              .out = data,
              .weight = own_weight,
              .label = "buffers"});
    unpack(values, averaged);
  }
  broadcast_buffers(comm, others, root);
}

}  // namespace paceline
