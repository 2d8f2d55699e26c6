// Going on from a checkpoint with what hides in a program: weights with two names, and a scheduler's step.
#include <gtest/gtest.h>

#include <cmath>

#include "paceline/data/safetensors.h"
#include "paceline/train/scheduler.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/failures.h"
#include "tests/train/saved_job.h"

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

/// A schedule of the program's own: the rate follows from the step alone.
class Cosine : public torch::optim::LRScheduler {
 public:
  Cosine(torch::optim::Optimizer& optimizer, unsigned steps)
      : LRScheduler(optimizer), groups_(optimizer.param_groups().size()), steps_(steps) {}

 private:
  std::vector<double> get_lrs() override {
    return std::vector<double>(groups_, 0.1 * (1 + std::cos(3.14159 * (step_count_ + 1) / steps_)));
  }
  std::size_t groups_;
  unsigned steps_;
};

/// Two groups with rates of their own.
template <class Schedule>
struct ScheduledJob {
  torch::nn::Sequential model = test::plain_model();
  DistributedDataParallel ddp;
  Optimizer<torch::optim::SGD> optimizer;
  Scheduler<Schedule> scheduler;
  JobState job;

  template <class... Args>
  explicit ScheduledJob(const Comm& comm, Args... args)
      : ddp(*model, comm), optimizer(ddp, groups(), torch::optim::SGDOptions(0.1)), scheduler(optimizer, args...) {}
  std::vector<torch::optim::OptimizerParamGroup> groups() {
    const auto all = model->parameters();
    return {{{all.begin(), all.begin() + 2}, std::make_unique<torch::optim::SGDOptions>(0.2)},
            {{all.begin() + 2, all.end()}, std::make_unique<torch::optim::SGDOptions>(0.05)}};
  }
  /// The rates after each step.
  std::vector<double> run(int first, int last) {
    std::vector<double> rates;
    for (int step = first; step < last; ++step) {
      optimizer.zero_grad();
      test::loss_of(model, batch_of(ddp.comm(), step)).backward();
      optimizer.step();
      scheduler.step();
      for (auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
    }
    return rates;
  }
  std::uint64_t hash() { return test::hash_of_job(*model, optimizer, ddp); }
};

template <class Schedule, class... Args>
void check_schedule(int n, Args... args) {
  const TemporaryFolder folder;
  test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    ScheduledJob<Schedule> whole(comm, args...);
    ScheduledJob<Schedule> first(comm, args...);
    test::copy_parameters(*whole.model, *first.model);
    whole.run(0, 3);
    first.run(0, 3);
    first.job.numbers["scheduler"] = first.scheduler.steps();
    save(folder.path, first.ddp, first.job);

    ScheduledJob<Schedule> second(comm, args...);
    ASSERT_TRUE(load(folder.path, second.ddp, second.job));
    EXPECT_EQ(second.hash(), first.hash()) << "each group's learning rate among it";
    second.scheduler.resume_at(second.job.numbers.at("scheduler"));
    EXPECT_EQ(second.run(3, 6), whole.run(3, 6));
    EXPECT_EQ(second.hash(), whole.hash());
    EXPECT_EQ(second.scheduler.steps(), 6u);

    ScheduledJob<Schedule> forgetful(comm, args...);
    load(folder.path, forgetful.ddp, forgetful.job);
    forgetful.run(3, 6);
    EXPECT_NE(forgetful.hash(), whole.hash()) << "the step counts";
  });
}

TEST(Resume, WithAScheduleThreeAndThreeStepsAreSixBitForBit) {
  for (const int n : {1, 2}) {
    check_schedule<torch::optim::StepLR>(n, 2u, 0.5);
    check_schedule<Cosine>(n, 9u);
  }
}

}  // namespace
}  // namespace paceline
