// Buffers, and batch norm over all ranks: as in one process, each rank's own, or refused by name.
#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <vector>

#include "paceline/train/gather.h"
#include "paceline/train/sync_batch_norm.h"
#include "tests/train/failures.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

using namespace test;
using torch::nn::Sequential;

constexpr std::int64_t kBatch = 6;

Sequential with_batch_norm() {
  return Sequential(torch::nn::Linear(12, 7), torch::nn::BatchNorm1d(7), torch::nn::Tanh(), torch::nn::Linear(7, 5));
}

// Several forwards before one backward, and integer buffers.
void check_buffers(Buffers how, int n) {
  test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential model = with_batch_norm();
    DistributedDataParallel ddp(*model, comm, {.buffers = how});
    const Samples all(2 * n * kBatch);
    const auto own = [&](int which) { return all.part((2 * comm.rank() + which) * kBatch, kBatch); };
    // What this rank would have without the others.
    torch::nn::BatchNorm1d alone(7);
    torch::NoGradGuard no_grad;
    for (int which = 0; which < 2; ++which) {
      alone->forward(torch::nn::functional::linear(own(which).data, model->parameters()[0], model->parameters()[1]));
    }
    const auto of_ranks = gather(comm, alone->running_var.unsqueeze(0));
    torch::AutoGradMode with_grad(true);
    const auto first = test::loss_of(model, own(0));  // the order counts for running statistics
    (first + test::loss_of(model, own(1))).backward();
    const auto buffers = model->named_buffers();
    EXPECT_EQ(buffers["1.num_batches_tracked"].item<std::int64_t>(), 2);
    torch::Tensor wanted = alone->running_var;
    if (how == Buffers::Broadcast) wanted = of_ranks[0][0];
    if (how == Buffers::Average) wanted = torch::cat(of_ranks).mean(0);
    EXPECT_LE(test::relative_difference(buffers["1.running_var"], wanted), 1e-6);
    EXPECT_EQ(test::same_on_all_ranks(comm, test::hash_of_tensors(model->buffers())), how != Buffers::Own);
  });
}

TEST(Buffers, AreEachRanksOwnOrMadeEqualAfterTheBackward) {
  for (const Buffers how : {Buffers::Own, Buffers::Broadcast, Buffers::Average}) check_buffers(how, 3);
}

TEST(Buffers, CanBeMadeEqualBeforeAnEvaluation) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    Sequential model = with_batch_norm();
    DistributedDataParallel ddp(*model, comm);
    model->forward(Samples(20).part(comm.rank() * kBatch, kBatch).data);
    EXPECT_FALSE(test::same_on_all_ranks(comm, test::hash_of_tensors(model->buffers())));
    ddp.sync_buffers(Buffers::Average);
    EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(model->buffers())));
  });
}

// Libtorch allows it; statistics that are averaged between the backwards must not forbid it. A buffer that a graph
// holds must not change unseen.
TEST(Buffers, OfTwoForwardsMayBeMadeEqualBetweenTheirBackwards) {
  for (const Buffers how : {Buffers::Average, Buffers::Broadcast}) {
    test::on_ranks(2, ThreadEngine::SharedMemory, [how](const Comm& comm) {
      Sequential model(torch::nn::Linear(12, 4), torch::nn::BatchNorm1d(4));
      DistributedDataParallel ddp(*model, comm, {.buffers = how});
      for (int step = 0; step < 2; ++step) {
        const auto first = model->forward(Samples(8).data * (comm.rank() + 1)).pow(2).mean();
        const auto second = model->forward(Samples(8).data * (comm.rank() + 2)).pow(3).mean();
        first.backward();
        EXPECT_NO_THROW(second.backward());
      }
      EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(model->buffers())));
    });
    test::on_ranks(2, ThreadEngine::SharedMemory, [how](const Comm& comm) {
      struct Scaled : torch::nn::Module {
        torch::Tensor w = register_parameter("w", torch::ones({3})), scale = register_buffer("scale", torch::ones({3}));
      } model;
      DistributedDataParallel ddp(model, comm, {.buffers = how});
      if (comm.rank() == 1) model.scale.mul_(3);
      const auto first = (model.w * model.scale).sum(), second = (model.w * model.scale).pow(2).sum();
      first.backward();
      if (comm.rank() == 0) return;
      EXPECT_THROW(second.backward(), c10::Error);
    });
  }
}

// Against libtorch's own batch norm in one process over the batches of all ranks, of as many samples as `counts` says.
void check_sync_batch_norm(const std::vector<std::int64_t>& counts, bool images, torch::ScalarType type,
                           std::optional<double> momentum, double tolerance) {
  torch::manual_seed(5);
  const auto network = [&](auto norm) {
    Sequential model;
    if (images) {
      model->push_back(torch::nn::Unflatten(torch::nn::UnflattenOptions(1, {1, 3, 4})));
      model->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 2)));
    } else {
      model->push_back(torch::nn::Linear(12, 4));
    }
    model->push_back(norm);
    model->push_back(torch::nn::Tanh());
    model->push_back(torch::nn::Flatten());
    model->push_back(torch::nn::Linear(images ? 24 : 4, 5));
    return model;
  };
  const torch::optional<double> torch_momentum = momentum ? torch::optional<double>(*momentum) : torch::nullopt;
  Sequential reference =
      images ? network(torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(4).momentum(torch_momentum)))
             : network(torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).momentum(torch_momentum)));
  reference->to(type);
  std::vector<std::int64_t> begins{0};
  for (const std::int64_t count : counts) begins.push_back(begins.back() + count);
  const Samples all(begins.back(), type);
  const auto sum_loss = [](Sequential& model, const Samples& samples) {
    return torch::nn::functional::cross_entropy(
        model->forward(samples.data * 2 + 5), samples.target,
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  };
  std::vector<torch::Tensor> start;
  for (const auto& p : reference->parameters()) start.push_back(p.detach().clone());
  torch::optim::SGD optimizer(reference->parameters(), torch::optim::SGDOptions(0.05));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    (sum_loss(reference, all) / static_cast<double>(begins.back())).backward();
    optimizer.step();
  }
  reference->eval();
  const auto evaluated = reference->forward(all.data).detach();
  test::on_ranks(static_cast<int>(counts.size()), ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential model = network(SyncBatchNorm(SyncBatchNormOptions{.num_features = 4, .momentum = momentum}));
    model->to(type);
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < start.size(); ++i) model->parameters()[i].copy_(start[i]);
    }
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 64, .reduction = Reduction::Weighted});
    Optimizer<torch::optim::SGD> steps(ddp, model->parameters(), torch::optim::SGDOptions(0.05));
    const auto rank = static_cast<std::size_t>(comm.rank());
    const Samples own = all.part(begins[rank], begins[rank + 1] - begins[rank]);
    for (int step = 0; step < 3; ++step) {
      steps.zero_grad();
      ddp.set_weight(static_cast<double>(own.data.size(0)));
      sum_loss(model, own).backward();
      steps.step();
    }
    for (std::size_t i = 0; i < start.size(); ++i) {
      EXPECT_LE(test::relative_difference(model->parameters()[i].detach(), reference->parameters()[i].detach()),
                tolerance)
          << "parameter " << i;
    }
    const auto wanted = reference->buffers(), got = model->buffers();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_LE(test::relative_difference(got[i].to(torch::kDouble), wanted[i].to(torch::kDouble)), tolerance)
          << "buffer " << i;
    }
    EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(model->buffers())));
    model->eval();
    EXPECT_LE(test::relative_difference(model->forward(all.data), evaluated), tolerance * 10);
  });
}

void check_sync_batch_norm(const std::vector<std::int64_t>& counts) {
  check_sync_batch_norm(counts, false, torch::kDouble, 0.1, 1e-12);
  check_sync_batch_norm(counts, true, torch::kDouble, std::nullopt, 1e-12);
  check_sync_batch_norm(counts, true, torch::kFloat, 0.3, 2e-5);
}

TEST(SyncBatchNorm, IsOneProcessOverTheWholeBatch) {
  for (const auto& counts : std::vector<std::vector<std::int64_t>>{{3}, {3, 5}, {3, 5, 7}, {1, 6}}) {
    check_sync_batch_norm(counts);
  }
}

TEST(SyncBatchNorm, IsThatAlsoWhereARankHasABatchOfNoSamples) {
  for (const auto& counts : std::vector<std::vector<std::int64_t>>{{0, 5}, {4, 0, 3}, {0, 0, 2}}) {
    check_sync_batch_norm(counts);
  }
}

TEST(SyncBatchNorm, OfOneSampleOnAllRanksTogetherIsRefusedOnAll) {
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Sequential model(torch::nn::Linear(12, 4), SyncBatchNorm(4));
                            DistributedDataParallel ddp(*model, comm);
                            model->forward(torch::ones({comm.rank(), 12}));
                          }),
                 {"INVALID_ARGUMENT", "SyncBatchNorm: 1 value(s) a channel on all ranks together"});
}

TEST(SyncBatchNorm, BackwardIsTheDerivative) {
  SyncBatchNorm norm(3);
  norm->to(torch::kDouble);
  auto x = torch::randn({5, 3}, torch::kDouble).requires_grad_(true);
  const auto weights = torch::randn({5, 3}, torch::kDouble);
  const auto loss = [&](const torch::Tensor& input) { return (norm(input).pow(3) * weights).sum(); };
  const auto gradient = torch::autograd::grad({loss(x)}, {x})[0];
  const torch::NoGradGuard no_grad;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    auto up = x.detach().clone(), down = x.detach().clone();
    up.view(-1)[i] += 1e-6, down.view(-1)[i] -= 1e-6;
    EXPECT_NEAR(gradient.view(-1)[i].item<double>(), ((loss(up) - loss(down)) / 2e-6).item<double>(), 1e-6);
  }
}

// A gradient penalty: derivatives of the norm of the input's gradient, against libtorch's batch norm in one process.
TEST(SyncBatchNorm, SecondDerivativesAreThoseOfOneProcess) {
  constexpr std::int64_t kRows = 4;
  const auto network = [](auto norm) {
    torch::manual_seed(3);
    Sequential model(torch::nn::Linear(12, 5), norm, torch::nn::Tanh(), torch::nn::Linear(5, 1));
    model->to(torch::kDouble);
    return model;
  };
  // Sums, so that the ranks' losses add up to that of one process.
  const auto penalty = [](Sequential& model, const torch::Tensor& rows) {
    auto x = rows.detach().clone().requires_grad_(true);
    const auto score = model->forward(x).pow(2).sum();
    const auto gradient = torch::autograd::grad({score}, {x}, {}, true, true)[0];
    (gradient.pow(2).sum() + score).backward();
  };
  for (const int ranks : {1, 2, 3, 4}) {
    const auto data = Samples(ranks * kRows, torch::kDouble).data;
    Sequential reference = network(torch::nn::BatchNorm1d(5));
    penalty(reference, data);
    test::on_ranks(ranks, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      Sequential model;
      {
        static std::mutex one_at_a_time;  // libtorch's generator
        const std::lock_guard lock(one_at_a_time);
        model = network(SyncBatchNorm(5));
      }
      DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 64, .reduction = Reduction::Sum});
      for (int step = 0; step < 2; ++step) {
        for (auto& p : model->parameters()) p.mutable_grad().reset();
        penalty(model, data.slice(0, comm.rank() * kRows, (comm.rank() + 1) * kRows));
        for (std::size_t i = 0; i < model->parameters().size(); ++i) {
          const auto wanted = reference->parameters()[i].grad();
          EXPECT_LE((model->parameters()[i].grad() - wanted).abs().max().item<double>(),
                    1e-12 * std::max(1.0, wanted.abs().max().item<double>()))
              << "parameter " << i << " of " << ranks << " rank(s)";
        }
      }
    });
  }
}

// The mean is rounded to the input's type; here by a third of the step between two values.
TEST(SyncBatchNorm, VarianceOfValuesFarFromZeroIsExact) {
  constexpr float kStep = 0.0078125F;  // between floats at 100,000
  test::on_ranks(3, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    SyncBatchNorm norm(SyncBatchNormOptions{.num_features = 1, .momentum = 1.0});
    DistributedDataParallel ddp(*norm, comm);
    norm(torch::full({4, 1}, 100'000.F + (comm.rank() == 2 ? kStep : 0)));
    const double variance = 2.0 / 9 * kStep * kStep * 12 / 11;
    EXPECT_NEAR(norm->running_var[0].item<double>(), variance, variance * 1e-5);
  });
}

TEST(SyncBatchNorm, MayBeTheWrappedModuleItself) {
  const auto all = Samples(6, torch::kDouble).data.slice(1, 0, 3);
  torch::nn::BatchNorm1d reference(3);
  reference->to(torch::kDouble);
  reference->forward(all).pow(3).sum().backward();
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    SyncBatchNormImpl norm(3);  // held by nobody
    norm.to(torch::kDouble);
    DistributedDataParallel ddp(norm, comm, {.reduction = Reduction::Sum});
    norm.forward(comm.rank() == 0 ? all.slice(0, 0, 4) : all.slice(0, 4)).pow(3).sum().backward();
    EXPECT_LE(test::relative_difference(norm.weight.grad(), reference->weight.grad()), 1e-12);
    EXPECT_LE(test::relative_difference(norm.running_var, reference->running_var), 1e-12);
  });
}

TEST(SyncBatchNorm, RefusesWhatItCannotNormalize) {
  SyncBatchNorm norm(3);
  EXPECT_THROW(norm(torch::randn({1, 3})), Error);
  EXPECT_THROW(norm(torch::randn({4, 2})), Error);
  EXPECT_THROW(norm(torch::randn({3})), Error);
}

TEST(SyncBatchNorm, WithoutABatchOnSomeRankIsAnErrorThatSaysSo) {
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Sequential model(torch::nn::Linear(12, 4), SyncBatchNorm(4), torch::nn::Linear(4, 5));
                            DistributedDataParallel ddp(*model, comm);
                            for (int step = 0; step < 2 + comm.rank(); ++step) {
                              test::loss_of(model, Samples(16).part(comm.rank() * 4, 4)).backward();
                            }
                            ddp.join();
                          }),
                 {"MISMATCH", "'no more batches'", "'batch norm means'"});
}

}  // namespace
}  // namespace paceline
