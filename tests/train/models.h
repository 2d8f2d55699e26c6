#pragma once

#include <torch/torch.h>

#include <cstring>
#include <string>
#include <vector>

#include "paceline/base/hash.h"
#include "paceline/train/optimizer.h"
#include "tests/support/world.h"

namespace paceline::test {

// Modules without batch norm, so that N workers with batch B equal one process with batch N*B.

inline torch::nn::Sequential mlp() {
  return torch::nn::Sequential(torch::nn::Linear(12, 33), torch::nn::Tanh(), torch::nn::Linear(33, 17),
                               torch::nn::Tanh(), torch::nn::Linear(17, 5));
}

inline torch::nn::Sequential conv() {
  return torch::nn::Sequential(torch::nn::Unflatten(torch::nn::UnflattenOptions(1, {1, 3, 4})),
                               torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 6, 3).padding(1)), torch::nn::Tanh(),
                               torch::nn::Conv2d(torch::nn::Conv2dOptions(6, 4, 3).padding(1)), torch::nn::Flatten(),
                               torch::nn::Linear(48, 5));
}

/// A data set of `count` samples for them.
struct Samples {
  torch::Tensor data, target;
  explicit Samples(std::int64_t count, torch::ScalarType type = torch::kFloat) {
    auto generator = torch::make_generator<at::CPUGeneratorImpl>(7);
    data = torch::randn({count, 12}, generator).to(type);
    target = torch::randint(0, 5, {count}, generator);
  }
  Samples part(std::int64_t begin, std::int64_t count) const {
    return Samples(data.slice(0, begin, begin + count), target.slice(0, begin, begin + count));
  }

 private:
  Samples(torch::Tensor d, torch::Tensor t) : data(std::move(d)), target(std::move(t)) {}
};

inline torch::Tensor loss_of(torch::nn::Sequential& model, const Samples& samples) {
  return torch::nn::functional::cross_entropy(model->forward(samples.data), samples.target);
}

inline void copy_parameters(const torch::nn::Module& from, torch::nn::Module& to) {
  const torch::NoGradGuard no_grad;
  const auto source = from.parameters();
  const auto target = to.parameters();
  for (std::size_t i = 0; i < source.size(); ++i) target[i].copy_(source[i]);
}

inline std::uint64_t hash_of_tensors(const std::vector<torch::Tensor>& tensors) {
  std::uint64_t hash = 0;
  for (const torch::Tensor& tensor : tensors) {
    const torch::Tensor c = tensor.detach().contiguous();
    hash = hash_of({static_cast<const std::byte*>(c.data_ptr()), c.nbytes()}, hash);
  }
  return hash;
}

/// Those that are defined.
inline std::vector<torch::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : module.parameters()) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

inline bool same_on_all_ranks(const Comm& comm, std::uint64_t hash) {
  const auto own = std::to_string(hash);
  for (const auto& theirs : comm.gather(own)) {
    if (theirs != own) return false;
  }
  return true;
}

/// Largest difference over largest reference value.
inline double relative_difference(const torch::Tensor& a, const torch::Tensor& reference) {
  return ((a - reference).abs().max() / reference.abs().max()).item<double>();
}

}  // namespace paceline::test
