#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "paceline/train/checkpoint.h"
#include "paceline/train/state/optimizer_state.h"
#include "tests/train/models.h"

namespace paceline::test {

/// Of all that a checkpoint holds of a model and its optimizer.
inline std::uint64_t hash_of_job(const torch::nn::Module& model, const torch::optim::Optimizer& optimizer,
                                 const DistributedDataParallel& ddp) {
  std::vector<torch::Tensor> tensors = model.parameters();
  for (const auto& buffer : model.buffers()) tensors.push_back(buffer);
  const OptimizerState state = state_of(optimizer, ddp.replica().parameters);
  for (const auto& moment : state.tensors) tensors.push_back(moment.tensor);
  return hash_of(state.scalars, hash_of_tensors(tensors));
}

/// Without dropout: threads share a generator.
inline torch::nn::Sequential plain_model() {
  return torch::nn::Sequential(torch::nn::Linear(12, 8), torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 5));
}

/// A job of one rank.
struct SmallJob {
  torch::nn::Sequential model;
  DistributedDataParallel ddp;
  Optimizer<torch::optim::Adam> optimizer;
  DataLoader loader;
  JobState job;

  SmallJob(const Comm& comm, const Samples& all, torch::nn::Sequential with = plain_model())
      : model(std::move(with)),
        ddp(*model, comm, {.check_replicas_every = 1}),
        optimizer(ddp, model->parameters(), torch::optim::AdamOptions(1e-2)),
        loader(std::make_shared<TensorDataset>(all.data, all.target), comm, {.batch_size = 3, .seed = 5}),
        job{.loaders = {&loader}} {}

  /// At most `steps`, of one epoch; the samples that were fed, by their first number.
  std::vector<float> run(int steps) {
    std::vector<float> fed;
    for (auto& batch : loader.epoch()) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target).backward();
      optimizer.step();
      for (std::int64_t i = 0; i < batch.size(); ++i) fed.push_back(batch.data[i][0].item<float>());
      if (--steps == 0) break;
    }
    return fed;
  }
  std::uint64_t hash() { return hash_of_job(*model, optimizer, ddp); }
};

}  // namespace paceline::test
