// Going on from a checkpoint with what hides in a program: weights with two names.
#include <gtest/gtest.h>

#include "paceline/data/safetensors.h"
#include "temporary_folder.h"
#include "train_failures.h"
#include "train_saved_job.h"

namespace paceline {
namespace {

using test::Samples;

constexpr std::int64_t kBatch = 4;

Samples batch_of(const Comm& comm, int step) {
  return Samples(8 * comm.world_size() * kBatch).part((step * comm.world_size() + comm.rank()) * kBatch, kBatch);
}

/// A layer and its batch norm under two names each, of which the second use comes after the first.
struct TiedImpl : torch::nn::Module {
  torch::nn::Linear layer{12, 12}, out{12, 5};
  torch::nn::BatchNorm1d norm{12};
  explicit TiedImpl(bool tied = true) {
    register_module("encoder", layer);
    register_module("norm", norm);
    register_module("decoder", tied ? layer : torch::nn::Linear(12, 12));
    if (tied) register_module("norm_again", norm);
    register_module("out", out);
  }
  torch::Tensor loss(const Samples& samples) {
    const auto hidden = torch::tanh(norm(layer(torch::tanh(norm(layer(samples.data))))));
    return torch::nn::functional::cross_entropy(out(hidden), samples.target);
  }
};
TORCH_MODULE(Tied);

/// With libtorch's parameters(), which lists what is tied twice.
struct TiedJob {
  Tied model;
  DistributedDataParallel ddp;
  Optimizer<torch::optim::Adam> optimizer;
  JobState job;
  TiedJob(const Comm& comm, bool tied = true)
      : model(tied), ddp(*model, comm), optimizer(ddp, model->parameters(), torch::optim::AdamOptions(1e-2)) {}
  void step(int number) {
    optimizer.zero_grad();
    model->loss(batch_of(ddp.comm(), number)).backward();
    optimizer.step();
  }
  std::uint64_t hash() { return test::hash_of_job(*model, optimizer, ddp); }
};

TEST(TiedWeights, AreStoredOnceAndComeBackTied) {
  for (const int n : {1, 2}) {
    const TemporaryFolder folder;
    test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      TiedJob first(comm);
      for (int step = 0; step < 3; ++step) first.step(step);
      const auto path = save(folder.path, first.ddp, first.job);
      const SafetensorsFile file = read_safetensors(path / "model.safetensors");
      EXPECT_EQ(file.tensors.size(), first.ddp.replica().parameters.size() + first.ddp.replica().buffers.size());
      EXPECT_EQ(file.metadata.at("decoder.weight"), "encoder.weight");
      EXPECT_EQ(file.metadata.at("norm_again.running_var"), "norm.running_var");
      EXPECT_EQ(file.metadata.size(), 2u + 5u) << "linear and batch norm";

      TiedJob second(comm);
      ASSERT_TRUE(load(folder.path, second.ddp, second.job));
      EXPECT_EQ(second.hash(), first.hash());
      const auto parameters = second.model->named_parameters();
      EXPECT_TRUE(parameters["decoder.weight"].is_same(parameters["encoder.weight"]));
      for (int step = 3; step < 6; ++step) first.step(step), second.step(step);
      EXPECT_EQ(second.hash(), first.hash());
    });
  }
}

TEST(TiedWeights, OfACheckpointWithoutThemAreRefusedByName) {
  const TemporaryFolder folder;
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    TiedJob untied(comm, false), tied(comm);
    save(folder.path, untied.ddp, untied.job);
    const auto before = tied.hash();
    try {
      load(folder.path, tied.ddp, tied.job);
      ADD_FAILURE() << "loaded";
    } catch (const Error& error) {
      test::expect_all_say({error.message()}, {"it has in addition", "'decoder.weight'", "'decoder.bias'"});
    }
    EXPECT_EQ(tied.hash(), before);
  });
}

}  // namespace
}  // namespace paceline
