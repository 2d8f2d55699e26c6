// Other ways for gradients to travel, and a program's hooks.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/train/failures.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

using namespace test;
using torch::nn::Sequential;

constexpr std::int64_t kBatch = 6;

TEST(Wire, SixteenBitsRoundOnEachRankAndOnce) {
  for (const Wire wire : {Wire::Float16, Wire::BFloat16}) {
    const auto type = wire == Wire::Float16 ? torch::kFloat16 : torch::kBFloat16;
    for (const ThreadEngine engine : {ThreadEngine::SharedMemory, ThreadEngine::Messages}) {
      const Samples all(3 * kBatch);
      Sequential reference = test::mlp();
      std::vector<std::vector<torch::Tensor>> of_ranks;
      for (int rank = 0; rank < 3; ++rank) {
        reference->zero_grad(true);
        test::loss_of(reference, all.part(rank * kBatch, kBatch)).backward();
        of_ranks.emplace_back();
        for (const auto& g : test::gradients_of(*reference)) of_ranks.back().push_back(g.to(type).to(torch::kFloat));
      }
      test::on_ranks(3, engine, [&](const Comm& comm) {
        Sequential model = test::mlp();
        if (comm.rank() == 0) test::copy_parameters(*reference, *model);
        DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 512, .wire = wire});
        for (int step = 0; step < 3; ++step) {
          model->zero_grad(true);
          test::loss_of(model, all.part(comm.rank() * kBatch, kBatch)).backward();
          const auto got = test::gradients_of(*model);
          for (std::size_t i = 0; i < got.size(); ++i) {
            const auto mean = (of_ranks[0][i] + of_ranks[1][i] + of_ranks[2][i]) * (1.0f / 3);
            EXPECT_TRUE(got[i].equal(mean.to(type).to(torch::kFloat))) << "parameter " << i;
          }
          EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(got)));
        }
      });
    }
  }
}

TEST(Codecs, SixteenBitsEndWithinAPercentOfTheLossAndKeepReplicasEqual) {
  const Samples all(3 * kBatch);
  const auto trained = [&](Wire wire) {
    double loss = 0;
    torch::manual_seed(3);
    Sequential start = test::mlp();
    test::on_ranks(3, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      Sequential model = test::mlp();
      test::copy_parameters(*start, *model);
      DistributedDataParallel ddp(*model, comm, {.wire = wire});
      Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < 60; ++step) {
        optimizer.zero_grad();
        test::loss_of(model, all.part(comm.rank() * kBatch, kBatch)).backward();
        optimizer.step();
      }
      EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(model->parameters())));
      if (comm.rank() == 0) loss = test::loss_of(model, all).item<double>();
    });
    return loss;
  };
  const double as_it_is = trained(Wire::AsIs);
  EXPECT_LT(as_it_is, 0.5 * std::log(5.0)) << "has hardly learned";
  for (const Wire wire : {Wire::Float16, Wire::BFloat16}) EXPECT_NEAR(trained(wire), as_it_is, 0.01 * as_it_is);
}

TEST(Wire, WhatAFloat16CannotHoldIsNotFinite) {
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Sequential model = test::mlp();
                            DistributedDataParallel ddp(*model, comm, {.wire = Wire::Float16});
                            auto loss = test::loss_of(model, Samples(kBatch));
                            if (comm.rank() == 1) loss = loss + (model->parameters()[1] * 1e6).sum();
                            loss.backward();
                          }),
                 {"ABORTED", "rank 1's gradient of parameter '0.bias' held NaN or infinity"});
}

TEST(Hooks, AUsersCommunicationOfABucketIsUsed) {
  const Samples all(2 * kBatch);
  Sequential reference = test::mlp();
  test::loss_of(reference, all).backward();
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential model = test::mlp();
    if (comm.rank() == 0) test::copy_parameters(*reference, *model);
    std::vector<std::size_t> called, completed;
    DistributedDataParallel ddp(
        *model, comm, {.bucket_bytes = 512, .reduce_bucket = [&](const GradientBucket& bucket) {
                         called.push_back(bucket.index);
                         return [&, index = bucket.index, values = bucket.values, with = bucket.comm]() mutable {
                           completed.push_back(index);
                           with.all_reduce<float>(std::span(values.data_ptr<float>(), values.numel()), ReduceOp::Mean);
                         };
                       }});
    test::loss_of(model, all.part(comm.rank() * kBatch, kBatch)).backward();
    EXPECT_GT(called.size(), 2u);
    EXPECT_EQ(called, completed);
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_LE(test::relative_difference(model->parameters()[i].grad(), reference->parameters()[i].grad()), 1e-6);
    }
  });
}

TEST(Hooks, BeforeAndAfterAStep) {
  Sequential model = test::mlp();
  DistributedDataParallel ddp(*model, Comm::solo());
  Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
  const auto weight = [&] { return model->parameters()[0].detach().clone(); };
  torch::Tensor before, after;
  optimizer.on_step({.before = [&] { before = weight(); }, .after = [&] { after = weight(); }});
  const auto start = weight();
  test::loss_of(model, Samples(kBatch)).backward();
  optimizer.step();
  EXPECT_TRUE(before.equal(start));
  EXPECT_TRUE(after.equal(weight()));
  EXPECT_FALSE(after.equal(start));
}

}  // namespace
}  // namespace paceline
