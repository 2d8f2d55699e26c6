// Gradients of several backwards and of ranks with different numbers of samples, against one process over all of them.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "paceline/train/data_loader.h"
#include "tests/train/failures.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

using namespace test;
using torch::nn::Sequential;

constexpr std::int64_t kBatch = 6;
constexpr std::int64_t kPasses = 4;

torch::Tensor sum_loss(Sequential& model, const Samples& samples) {
  return torch::nn::functional::cross_entropy(model->forward(samples.data), samples.target,
                                              torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

void expect_gradients(const Sequential& got, const Sequential& wanted, double tolerance = 1e-6) {
  const auto a = got->parameters(), b = wanted->parameters();
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_LE(test::relative_difference(a[i].grad(), b[i].grad()), tolerance) << "parameter " << i;
  }
}

/// The gradient of the mean loss over all samples, in one process.
Sequential oracle(const Samples& all) {
  Sequential reference = test::mlp();
  test::loss_of(reference, all).backward();
  return reference;
}

enum class Scope { Backward, ForwardAndBackward, Accumulate };
enum class Zeroing { Undefine, Zero };

// Accumulation over four backwards is one batch four times as large, whatever the scope covers, and one reduction.
void check_accumulation(int n, Scope scope, Zeroing zeroing, ThreadEngine engine) {
  const Samples all(kBatch * kPasses * n);
  Sequential reference = oracle(all);
  test::on_ranks(n, engine, [&](const Comm& comm) {
    Sequential model = test::mlp();
    if (comm.rank() == 0) test::copy_parameters(*reference, *model);
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 512});
    Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.0));
    if (scope == Scope::Accumulate) ddp.accumulate(kPasses);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad(zeroing == Zeroing::Undefine);
      for (std::int64_t pass = 0; pass < kPasses; ++pass) {
        const Samples own = all.part((pass * n + comm.rank()) * kBatch, kBatch);
        const bool last = pass == kPasses - 1;
        std::optional<DistributedDataParallel::NoSync> no_sync;
        const auto enter = [&] {
          if (!last && scope != Scope::Accumulate) no_sync.emplace(ddp.no_sync());
        };
        if (scope == Scope::ForwardAndBackward) enter();
        const auto loss = test::loss_of(model, own) / kPasses;
        if (scope == Scope::Backward) enter();
        loss.backward();
        EXPECT_EQ(ddp.averaged(), last);
      }
      EXPECT_EQ(ddp.rounds(), static_cast<std::uint64_t>(step + 1)) << "one reduction a step";
      expect_gradients(model, reference);
      optimizer.step();
    }
    EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(test::gradients_of(*model))));
  });
}

TEST(Accumulation, IsOneLargeBatchInEveryScope) {
  for (const Scope scope : {Scope::Backward, Scope::ForwardAndBackward, Scope::Accumulate}) {
    for (const Zeroing zeroing : {Zeroing::Undefine, Zeroing::Zero}) {
      for (const int n : {1, 2, 3}) check_accumulation(n, scope, zeroing, ThreadEngine::SharedMemory);
    }
  }
  check_accumulation(2, Scope::Accumulate, Zeroing::Undefine, ThreadEngine::Messages);
}

// The averaging backward does not reach what an earlier one accumulated.
TEST(Accumulation, CoversParametersThatTheLastBackwardDoesNotReach) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    torch::nn::Linear early(2, 1), late(2, 1);
    Sequential model(early, late);
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 64});
    const auto x = torch::full({1, 2}, comm.rank() + 1.0f);  // the mean over ranks is 1.5
    for (int step = 0; step < 3; ++step) {
      model->zero_grad(true);
      {
        const auto only_accumulate = ddp.no_sync();
        early(x).sum().backward();
      }
      late(x).sum().backward();
      EXPECT_TRUE(early->weight.grad().eq(1.5).all().item<bool>()) << "step " << step;
      EXPECT_TRUE(late->weight.grad().eq(1.5).all().item<bool>()) << "step " << step;
    }
  });
}

TEST(Accumulation, CoversWhatOnlyOneRankReachedAndOnlyEarlier) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    torch::nn::Linear early(2, 1), late(2, 1);
    Sequential model(early, late);
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 64});
    const auto x = torch::ones({1, 2});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad(true);
      {
        const auto only_accumulate = ddp.no_sync();
        (comm.rank() == 0 ? early(x) : late(x)).sum().backward();
      }
      late(x).sum().backward();
      EXPECT_TRUE(early->weight.grad().defined()) << "rank 0 has computed it";
      EXPECT_TRUE(early->weight.grad().eq(0.5).all().item<bool>());
      EXPECT_TRUE(late->weight.grad().eq(1.5).all().item<bool>());
    }
  });
}

TEST(Accumulation, AnEpochThatEndsInAGroupIsAveragedByHand) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    torch::nn::Linear model(2, 1);
    DistributedDataParallel ddp(*model, comm);
    Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
    ddp.accumulate(3);
    const auto x = torch::full({1, 2}, comm.rank() + 1.0f);
    for (int pass = 0; pass < 2; ++pass) model(x).sum().backward();
    EXPECT_FALSE(ddp.averaged());
    ddp.average();
    EXPECT_TRUE(model->weight.grad().eq(3).all().item<bool>());
    optimizer.step();
  });
}

// Rank 1's step has a loss that reaches no parameter: it averages without a backward.
TEST(Accumulation, ARankWithoutABackwardAddsZeros) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    torch::nn::Linear model(2, 1);
    DistributedDataParallel ddp(*model, comm);
    if (comm.rank() == 0) model(torch::ones({1, 2})).sum().backward();
    else ddp.average();
    EXPECT_TRUE(model->weight.grad().eq(0.5).all().item<bool>());
  });
}

TEST(Accumulation, AccumulatedBackwardsAreOneStepOfTheAccount) {
  std::vector<double> samples;
  const Comm comm = Comm::solo();
  Sequential model = test::mlp();
  DistributedDataParallel ddp(*model, comm);
  Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
  ddp.accumulate(2);
  const Samples all(24);
  DataLoader loader(std::make_shared<TensorDataset>(all.data, all.target), comm, {.batch_size = 3});
  comm.timeline().set_sink([&](const StepEvents& events) { samples.push_back(events.samples); });
  for (auto& batch : loader.epoch()) {
    torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target).backward();
    if (!ddp.averaged()) continue;
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_EQ(samples, std::vector<double>(4, 6.0));
}

TEST(Accumulation, AnAverageByHandEndsAStepOfTheAccount) {
  std::vector<double> samples;
  const Comm comm = Comm::solo();
  Sequential model = test::mlp();
  DistributedDataParallel ddp(*model, comm);
  Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
  ddp.accumulate(3);
  const Samples all(12);
  DataLoader loader(std::make_shared<TensorDataset>(all.data, all.target), comm, {.batch_size = 3});
  comm.timeline().set_sink([&](const StepEvents& events) { samples.push_back(events.samples); });
  for (auto& batch : loader.epoch()) {
    torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target).backward();
    ddp.average();
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_EQ(samples, std::vector<double>(4, 3.0));
}

TEST(Refused, AStepInsideNoSync) {
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Sequential model = test::mlp();
                            DistributedDataParallel ddp(*model, comm);
                            Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(),
                                                                   torch::optim::SGDOptions(0.1));
                            test::loss_of(model, Samples(kBatch)).backward();
                            const auto only_accumulate = ddp.no_sync();
                            test::loss_of(model, Samples(kBatch)).backward();
                            optimizer.step();
                          }),
                 {"ABORTED", "gradients of 1 backward are accumulated and not averaged"});
}

TEST(Refused, RanksThatAccumulateDifferently) {
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Sequential model = test::mlp();
                            DistributedDataParallel ddp(*model, comm);
                            ddp.accumulate(static_cast<std::size_t>(comm.rank() + 2));
                            for (int i = 0; i < 6; ++i) test::loss_of(model, Samples(kBatch)).backward();
                          }),
                 {"MISMATCH", "rank 0 averages the gradients of 2 backward(s), but rank 1 those of 3"});
}

TEST(Refused, RanksWithOtherOptions) {
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Sequential model = test::mlp();
                            DistributedDataParallel ddp(
                                *model, comm, {.reduction = comm.rank() == 0 ? Reduction::Mean : Reduction::Weighted});
                          }),
                 {"MISMATCH", "Reduction::Mean", "Reduction::Weighted"});
}

// 11 and 101 tokens, in one backward and in several; the plain mean is shown wrong beside it.
void check_weights(int n, const std::vector<std::vector<std::int64_t>>& counts, ThreadEngine engine) {
  std::int64_t total = 0;
  std::vector<std::vector<std::int64_t>> begins;  // by rank and pass
  for (const auto& of_rank : counts) {
    begins.emplace_back();
    for (const std::int64_t count : of_rank) begins.back().push_back(total), total += count;
  }
  const Samples all(total);
  Sequential reference = oracle(all);
  test::on_ranks(n, engine, [&](const Comm& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    Sequential model = test::mlp();
    if (comm.rank() == 0) test::copy_parameters(*reference, *model);
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 512, .reduction = Reduction::Weighted});
    Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.0));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad(step != 1);
      for (std::size_t pass = 0; pass < counts[rank].size(); ++pass) {
        std::optional<DistributedDataParallel::NoSync> no_sync;
        if (pass + 1 < counts[rank].size()) no_sync.emplace(ddp.no_sync());
        ddp.set_weight(static_cast<double>(counts[rank][pass]));
        sum_loss(model, all.part(begins[rank][pass], counts[rank][pass])).backward();
      }
      if (counts[rank].empty()) ddp.average();
      expect_gradients(model, reference);
      EXPECT_EQ(ddp.total_weight(), static_cast<double>(total));
      optimizer.step();
    }
    EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(test::gradients_of(*model))));
  });
}

TEST(Weighted, RanksWithDifferentNumbersOfTokensAreOneProcessOverAllOfThem) {
  for (const ThreadEngine engine : {ThreadEngine::SharedMemory, ThreadEngine::Messages}) {
    check_weights(2, {{11}, {101}}, engine);
    check_weights(2, {{3, 8}, {50, 1, 50}}, engine);
    check_weights(3, {{11}, {}, {40, 61}}, engine);
  }
  check_weights(1, {{5, 17}}, ThreadEngine::SharedMemory);
}

TEST(Weighted, WeightsOfWhatWasClearedDoNotCountAndThoseOfAnAverageByHandDo) {
  struct Net : torch::nn::Module {
    torch::Tensor w = register_parameter("w", torch::ones({3}, torch::kDouble));
  };
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Net net;
    DistributedDataParallel ddp(net, comm, {.reduction = Reduction::Weighted});
    for (int step = 0; step < 2; ++step) {
      net.w.mutable_grad().reset();
      if (comm.rank() == 0) {
        {
          const auto alone = ddp.no_sync();
          ddp.set_weight(100);
          (net.w * 7).sum().backward();
        }
        net.w.mutable_grad().reset();
      }
      ddp.set_weight(2);
      (net.w * (comm.rank() + 1.0)).sum().backward();
      EXPECT_EQ(ddp.total_weight(), 4);
      EXPECT_TRUE(net.w.grad().eq(0.75).all().item<bool>()) << net.w.grad();
    }
    net.w.mutable_grad().reset();
    {
      const auto only_accumulate = ddp.no_sync();
      ddp.set_weight(2);
      (net.w * 3).sum().backward();
    }
    ddp.set_weight(1);  // of samples without a backward
    ddp.average();
    EXPECT_EQ(ddp.total_weight(), 6);
    EXPECT_TRUE(net.w.grad().eq(1).all().item<bool>()) << net.w.grad();
  });
}

// What a rank has accumulated when its data end counts in the step that the others average by hand.
TEST(Accumulation, OfARankWhoseDataEndIsAveragedWithTheOthers) {
  struct Net : torch::nn::Module {
    torch::Tensor w = register_parameter("w", torch::ones({3}, torch::kDouble));
  };
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Net net;
    DistributedDataParallel ddp(net, comm);
    {
      const auto only_accumulate = ddp.no_sync();
      (net.w * (comm.rank() + 1.0)).sum().backward();
    }
    if (comm.rank() == 0) {
      ddp.average();
      EXPECT_TRUE(net.w.grad().eq(1.5).all().item<bool>()) << net.w.grad();
    }
    ddp.join();
  });
}

TEST(Weighted, ThePlainMeanOfRanksIsNotThat) {
  const Samples all(112);
  Sequential reference = oracle(all);
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential model = test::mlp();
    if (comm.rank() == 0) test::copy_parameters(*reference, *model);
    DistributedDataParallel ddp(*model, comm);
    test::loss_of(model, comm.rank() == 0 ? all.part(0, 11) : all.part(11, 101)).backward();
    EXPECT_GT(test::relative_difference(model->parameters()[0].grad(), reference->parameters()[0].grad()), 1e-2);
  });
}

TEST(Sum, IsTheSumOverRanks) {
  const Samples all(3 * kBatch);
  Sequential reference = test::mlp();
  sum_loss(reference, all).backward();
  test::on_ranks(3, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential model = test::mlp();
    if (comm.rank() == 0) test::copy_parameters(*reference, *model);
    DistributedDataParallel ddp(*model, comm, {.reduction = Reduction::Sum});
    for (int step = 0; step < 2; ++step) {
      model->zero_grad(step == 0);
      sum_loss(model, all.part(comm.rank() * kBatch, kBatch)).backward();
      expect_gradients(model, reference);
    }
  });
}

TEST(Refused, GradientsOfAnEarlierStepThatWouldCountAgain) {
  for (const Reduction reduction : {Reduction::Sum, Reduction::Weighted}) {
    expect_all_say(failures(2,
                            [&](const Comm& comm) {
                              Sequential model = test::mlp();
                              DistributedDataParallel ddp(*model, comm, {.reduction = reduction});
                              for (int step = 0; step < 2; ++step) {
                                if (reduction == Reduction::Weighted) ddp.set_weight(kBatch);
                                test::loss_of(model, Samples(kBatch)).backward();
                              }
                            }),
                   {"INVALID_ARGUMENT", "was not zeroed after the last step"});
  }
}

TEST(Refused, WeightsThatAreMissingOrMakeNoSense) {
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Sequential model = test::mlp();
                            DistributedDataParallel ddp(*model, comm, {.reduction = Reduction::Weighted});
                            test::loss_of(model, Samples(kBatch)).backward();
                          }),
                 {"INVALID_ARGUMENT", "needs a set_weight() of its own"});
  Sequential model = test::mlp();
  DistributedDataParallel weighted(*model, Comm::solo(), {.reduction = Reduction::Weighted});
  EXPECT_THROW(weighted.set_weight(-1), Error);
  EXPECT_THROW(weighted.set_weight(std::nan("")), Error);
  EXPECT_THROW(weighted.accumulate(0), Error);
  Sequential other = test::mlp();
  DistributedDataParallel plain(*other, Comm::solo());
  EXPECT_THROW(plain.set_weight(3), Error);
}

}  // namespace
}  // namespace paceline
