// Ranks with different numbers of batches, early stops, and what all ranks decide together.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "paceline/train/data_loader.h"
#include "paceline/train/gradient_norm.h"
#include "paceline/train/state/optimizer_state.h"
#include "paceline/train/steps.h"
#include "tests/train/failures.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

using test::expect_all_say;
using test::failures;
using test::Samples;
using torch::nn::Sequential;

constexpr std::int64_t kBatch = 4;

std::uint64_t state_hash(const Sequential& model, const torch::optim::Optimizer& optimizer,
                         const DistributedDataParallel& ddp) {
  std::vector<torch::Tensor> tensors = model->parameters();
  for (const auto& buffer : model->buffers()) tensors.push_back(buffer);
  const OptimizerState state = state_of(optimizer, ddp.replica().parameters);
  for (const auto& moment : state.tensors) tensors.push_back(moment.tensor);
  return hash_of(state.scalars, test::hash_of_tensors(tensors));
}

double lr_at(int step) { return 0.05 / (1 + step); }

// Rank r has 2 (r + 1) batches. Equal to one process whose step takes the batches of the ranks that still have one,
// with a learning rate that changes with each step and momentum.
void check_uneven(int n, EndedRanks ended, ThreadEngine engine) {
  const auto batches = [](int rank) { return 2 * (rank + 1); };
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  Sequential reference = test::mlp(), start = test::mlp();
  test::copy_parameters(*reference, *start);
  const auto batch = [](int step, int rank) { return (step * 4 + rank) * kBatch; };
  const Samples all(batch(batches(n), n));
  torch::optim::SGD plain(reference->parameters(), options);
  for (int step = 0; step < batches(n - 1); ++step) {
    plain.zero_grad();
    int active = 0;
    for (int rank = 0; rank < n; ++rank) active += step < batches(rank);
    for (int rank = 0; rank < n; ++rank) {
      if (step >= batches(rank)) continue;
      (test::loss_of(reference, all.part(batch(step, rank), kBatch)) / (ended == EndedRanks::LeaveOut ? active : n))
          .backward();
    }
    plain.param_groups()[0].options().set_lr(lr_at(step));
    plain.step();
  }
  test::on_ranks(n, engine, [&](const Comm& comm) {
    Sequential model = test::mlp();
    if (comm.rank() == 0) test::copy_parameters(*start, *model);
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 512, .ended_ranks = ended, .check_replicas_every = 1});
    Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), options);
    std::vector<int> own(static_cast<std::size_t>(batches(comm.rank())));
    std::iota(own.begin(), own.end(), 0);
    for (const int step : steps(ddp, own)) {
      optimizer.zero_grad();
      test::loss_of(model, all.part(batch(step, comm.rank()), kBatch)).backward();
      optimizer.param_groups()[0].options().set_lr(lr_at(step));
      optimizer.step();
    }
    const auto wanted = reference->parameters(), got = model->parameters();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_LE(test::relative_difference(got[i].detach(), wanted[i].detach()), 1e-5) << "parameter " << i;
    }
    EXPECT_TRUE(test::same_on_all_ranks(comm, state_hash(model, optimizer, ddp)));
    // And on they go together.
    optimizer.zero_grad();
    test::loss_of(model, all.part(comm.rank() * kBatch, kBatch)).backward();
    optimizer.step();
    EXPECT_TRUE(test::same_on_all_ranks(comm, state_hash(model, optimizer, ddp)));
  });
}

TEST(Uneven, RanksThatHaveDataGoOnAndAllEndEqual) {
  for (const EndedRanks ended : {EndedRanks::LeaveOut, EndedRanks::CountAsZeros}) {
    check_uneven(2, ended, ThreadEngine::SharedMemory);
    check_uneven(3, ended, ThreadEngine::SharedMemory);
    check_uneven(3, ended, ThreadEngine::Messages);
  }
}

/// Trains with `batches[rank]` batches a rank for two epochs; returns how many steps rank 0's optimizer took.
template <class Each>
void train_uneven(const Comm& comm, DataParallelOptions options, const std::vector<int>& batches, Each each) {
  Sequential model = test::mlp();
  DistributedDataParallel ddp(*model, comm, options);
  Optimizer<torch::optim::Adam> optimizer(ddp, model->parameters(), torch::optim::AdamOptions(1e-3));
  const Samples all(64);
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<int> own(static_cast<std::size_t>(batches[static_cast<std::size_t>(comm.rank())]));
    std::iota(own.begin(), own.end(), 0);
    for (const int step : steps(ddp, own)) {
      optimizer.zero_grad();
      test::loss_of(model, all.part((step + comm.rank()) * kBatch, kBatch)).backward();
      optimizer.step();
      each(ddp, step);
    }
    EXPECT_TRUE(test::same_on_all_ranks(comm, state_hash(model, optimizer, ddp)));
  }
  const auto* first = optimizer.state().begin()->second.get();
  each(ddp, -static_cast<int>(static_cast<const torch::optim::AdamParamState*>(first)->step()));
}

TEST(Uneven, StopEndsAfterTheLastStepForWhichAllHadData) {
  test::on_ranks(3, ThreadEngine::SharedMemory, [](const Comm& comm) {
    int taken = 0;
    train_uneven(comm, {.uneven = Uneven::Stop}, {5, 3, 4}, [&](auto&, int step) { taken = step < 0 ? -step : taken; });
    EXPECT_EQ(taken, 2 * 3) << "Adam's step counter, over two epochs";
  });
}

TEST(Uneven, EvenNumbersCostNothingAndSkipNothing) {
  for (const Uneven uneven : {Uneven::GoOn, Uneven::Stop, Uneven::Raise}) {
    test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      int taken = 0;
      std::uint64_t rounds = 0;
      train_uneven(comm, {.uneven = uneven}, {4, 4}, [&](auto& ddp, int step) {
        taken = step < 0 ? -step : taken;
        rounds = ddp.rounds();
        EXPECT_EQ(ddp.skipped_rounds(), 0u);
      });
      EXPECT_EQ(taken, 8);
      EXPECT_EQ(rounds, 8u);
    });
  }
}

TEST(Uneven, ARankWithoutAnyBatch) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    int taken = 0;
    train_uneven(comm, {}, {0, 3}, [&](auto&, int step) { taken = step < 0 ? -step : taken; });
    EXPECT_EQ(taken, 6) << "rank 0 took part without ever stepping, and has the state of rank 1";
  });
}

TEST(Uneven, RaiseNamesTheRankThatEnded) {
  expect_all_say(failures(3,
                          [](const Comm& comm) {
                            train_uneven(comm, {.uneven = Uneven::Raise}, {5, 5, 3}, [](auto&, int) {});
                          }),
                 {"E304 MISMATCH", "rank 2 has no more data, while rank 0 goes on (after 3 averagings)"});
}

TEST(Uneven, AnExceptionOnARankThatGoesOnReachesThoseThatWait) {
  const auto messages = failures(2, [](const Comm& comm) {
    train_uneven(comm, {}, {2, 6}, [](auto&, int step) {
      if (step == 4) throw std::runtime_error("disk on fire");
    });
  });
  EXPECT_NE(messages[0].find("rank 1 gave up: disk on fire"), std::string::npos) << messages[0];
  EXPECT_EQ(messages[1], "disk on fire");
}

// Every sample counts once, whatever the tails.
TEST(Uneven, AnExactLoaderWithWeightsIsOneProcessOverAllSamples) {
  constexpr std::int64_t kSamples = 23;
  const Samples all(kSamples);
  Sequential reference = test::mlp();
  const auto sum_loss = [](Sequential& model, const torch::Tensor& data, const torch::Tensor& target) {
    return torch::nn::functional::cross_entropy(
        model->forward(data), target, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  };
  test::loss_of(reference, all).backward();
  test::on_ranks(3, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential model = test::mlp();
    if (comm.rank() == 0) test::copy_parameters(*reference, *model);
    DistributedDataParallel ddp(*model, comm, {.reduction = Reduction::Weighted});
    DataLoader loader(std::make_shared<TensorDataset>(all.data, all.target), comm,
                      {.batch_size = 7, .tail = SampleTail::Exact});
    double seen = 0;
    auto sum = torch::zeros_like(model->parameters()[0]);
    for (auto& batch : steps(ddp, loader.epoch())) {
      model->zero_grad(true);
      ddp.set_weight(static_cast<double>(batch.size()));
      sum_loss(model, batch.data, batch.target).backward();
      seen += ddp.total_weight();
      sum += model->parameters()[0].grad() * ddp.total_weight();
    }
    if (comm.rank() > 1) return;  // 7 samples are one batch; 8, which the others have, are two
    EXPECT_EQ(seen, static_cast<double>(kSamples));
    EXPECT_LE(test::relative_difference(sum / seen, reference->parameters()[0].grad()), 1e-5);
  });
}

TEST(EarlyStop, IsAgreedInTheSameStep) {
  test::on_ranks(3, ThreadEngine::SharedMemory, [](const Comm& comm) {
    std::vector<int> done;
    train_uneven(comm, {}, {6, 6, 6}, [&](DistributedDataParallel& ddp, int step) {
      if (step < 0) return;
      done.push_back(step);
      if (comm.rank() == 1 && step == 2) ddp.request_stop();  // seen in step 3
      EXPECT_EQ(ddp.stop_agreed(), step == 3);
    });
    EXPECT_EQ(done, (std::vector<int>{0, 1, 2, 3, 0, 1, 2, 3}));
  });
}

TEST(EarlyStop, ReachesRanksThatHaveNoMoreData) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    int taken = 0;
    train_uneven(comm, {}, {2, 9}, [&](DistributedDataParallel& ddp, int step) {
      if (step == 4) ddp.request_stop();
      taken = step < 0 ? -step : taken;
    });
    EXPECT_EQ(taken, 12) << "6 steps an epoch";
  });
}

// ---- NaN and infinity

/// A backward that gives `value` to the weight of layer 1 on one rank.
void poisoned_step(const Comm& comm, Sequential& model, int poisoned_rank, float value) {
  auto loss = test::loss_of(model, Samples(kBatch));
  if (comm.rank() == poisoned_rank) loss = loss + (model->parameters()[2] * value).sum();
  loss.backward();
}

TEST(NotFinite, IsNamedByRankParameterAndStepOnAllRanks) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    expect_all_say(failures(3,
                            [&](const Comm& comm) {
                              Sequential model = test::mlp();
                              DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 512});
                              poisoned_step(comm, model, -1, 0);
                              model->zero_grad(true);
                              poisoned_step(comm, model, 2, value);
                            }),
                   {"E502 ABORTED", "rank 2's gradient of parameter '2.weight' held NaN or infinity in step 1"});
  }
  const auto alone = failures(1, [](const Comm& comm) {
    Sequential model = test::mlp();
    DistributedDataParallel ddp(*model, comm);
    poisoned_step(comm, model, 0, std::numeric_limits<float>::quiet_NaN());
  });
  expect_all_say(alone, {"'2.weight' held NaN or infinity in step 0"});
}

TEST(NotFinite, CanBeSkippedOnAllRanks) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    Sequential model = test::mlp();
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 512, .not_finite = NotFinite::Skip});
    Optimizer<torch::optim::Adam> optimizer(ddp, model->parameters(), torch::optim::AdamOptions(1e-2));
    for (int step = 0; step < 4; ++step) {
      const auto before = state_hash(model, optimizer, ddp);
      poisoned_step(comm, model, step == 2 ? 1 : -1, std::numeric_limits<float>::infinity());  // without zero_grad()
      optimizer.step();
      EXPECT_EQ(state_hash(model, optimizer, ddp) == before, step == 2) << "step " << step;
    }
    EXPECT_EQ(ddp.skipped_rounds(), 1u);
    EXPECT_TRUE(test::same_on_all_ranks(comm, state_hash(model, optimizer, ddp)));
    bool told = false;
    for (const Finding& finding : ddp.recorder().summary().findings) told |= finding.id == "not_finite";
    EXPECT_TRUE(told);
  });
}

TEST(NotFinite, InARoundThatIsDroppedAnywayDropsItOnce) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    Sequential model = test::mlp();
    DistributedDataParallel ddp(*model, comm, {.uneven = Uneven::Stop, .not_finite = NotFinite::Skip});
    const std::vector<int> own(static_cast<std::size_t>(2 - comm.rank()));
    int batch = 0;
    for ([[maybe_unused]] const int one : steps(ddp, own)) {
      poisoned_step(comm, model, batch++ == 1 ? 0 : -1, std::numeric_limits<float>::infinity());
    }
    EXPECT_EQ(ddp.skipped_rounds(), 1u);
  });
}

TEST(NotFinite, CanBeLetPass) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    Sequential model = test::mlp();
    DistributedDataParallel ddp(*model, comm, {.not_finite = NotFinite::GoOn});
    poisoned_step(comm, model, 1, std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(model->parameters()[2].grad().isnan().all().item<bool>());
  });
}

// ---- Clipping

TEST(Clip, IsThatOfOneProcessAndEqualOnAllRanks) {
  for (const double norm_type : {2.0, std::numeric_limits<double>::infinity()}) {
    for (const double max_norm : {1e-3, 1e3}) {
      const Samples all(3 * kBatch);
      Sequential reference = test::mlp();
      test::loss_of(reference, all).backward();
      const double norm = torch::nn::utils::clip_grad_norm_(reference->parameters(), max_norm, norm_type);
      test::on_ranks(3, ThreadEngine::SharedMemory, [&](const Comm& comm) {
        Sequential model = test::mlp();
        if (comm.rank() == 0) test::copy_parameters(*reference, *model);
        DistributedDataParallel ddp(*model, comm);
        test::loss_of(model, all.part(comm.rank() * kBatch, kBatch)).backward();
        EXPECT_NEAR(clip_grad_norm(ddp, max_norm, norm_type), norm, norm * 1e-6);
        for (std::size_t i = 0; i < model->parameters().size(); ++i) {
          EXPECT_LE(test::relative_difference(model->parameters()[i].grad(), reference->parameters()[i].grad()), 2e-6);
        }
        EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(test::gradients_of(*model))));
      });
    }
  }
}

TEST(Clip, OfGradientsThatAreNotAveragedIsRefused) {
  Sequential model = test::mlp();
  DistributedDataParallel ddp(*model, Comm::solo());
  ddp.accumulate(2);
  test::loss_of(model, Samples(kBatch)).backward();
  EXPECT_THROW(clip_grad_norm(ddp, 1), Error);
  test::loss_of(model, Samples(kBatch)).backward();
  EXPECT_THROW(clip_grad_norm(ddp, 0), Error);
  EXPECT_THROW(clip_grad_norm(ddp, 1, 3), Error);
  EXPECT_GT(clip_grad_norm(ddp, 1), 0);
}

TEST(Clip, ByLibtorchInTheMiddleOfAccumulationIsFound) {
  const auto body = [](bool clip) {
    return [clip](const Comm& comm) {
      Sequential model = test::mlp();
      DistributedDataParallel ddp(*model, comm);
      ddp.accumulate(2);
      test::loss_of(model, Samples(kBatch)).backward();
      if (clip) torch::nn::utils::clip_grad_norm_(model->parameters(), 1e-3);
      else model->zero_grad(false);  // a batch that is thrown away is fine
      test::loss_of(model, Samples(kBatch)).backward();
    };
  };
  expect_all_say(failures(2, body(true)), {"ABORTED", "was changed (clipped?) while it was accumulated"});
  for (const auto& message : failures(2, body(false))) EXPECT_EQ(message, "");
}

}  // namespace
}  // namespace paceline
