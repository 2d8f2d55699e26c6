#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "paceline/base/dtype.h"
#include "paceline/comm/comm.h"

namespace paceline {

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

/// What a module consists of, each tensor once, under the first of its names.
struct Replica {
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
  /// Further names of these (tied weights), with the name they stand under.
  std::map<std::string, std::string> aliases;

  static Replica of(const torch::nn::Module& module);
};

/// Collective. Throws Mismatch, the same on all ranks, unless all give the same `settings`, one line, and hold tensors
/// of the same names, shapes and types; it names the first difference and two ranks.
void require_same_replica(const Comm& comm, const Replica& replica, const std::string& model,
                          const std::string& settings);

/// Collective. Gives all ranks the values of `root`.
void broadcast_replica(const Comm& comm, const Replica& replica, int root);
void broadcast_tensors(const Comm& comm, const std::vector<NamedTensor>& tensors, int root);

/// Throws InvalidArgument naming the parameter if its type cannot be averaged.
Dtype gradient_dtype(const NamedTensor& parameter);

}  // namespace paceline
