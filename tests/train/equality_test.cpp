// N workers are one process with N times the batch; replicas are equal bit for bit.
#include <gtest/gtest.h>

#include <limits>

#include "tests/train/models.h"

namespace paceline {
namespace {

using test::Samples;
using torch::nn::Sequential;

constexpr std::int64_t kBatch = 8;  // a rank

struct Case {
  std::string name;
  Sequential (*build)();
  torch::ScalarType type;
  double gradient_tolerance;
};

class Equality : public testing::TestWithParam<std::tuple<Case, int>> {
 protected:
  const Case& model() const { return std::get<0>(GetParam()); }
  int n() const { return std::get<1>(GetParam()); }
};

TEST_P(Equality, GradientsAreThoseOfOneProcess) {
  const Case model = this->model();
  torch::manual_seed(1);  // libtorch's own differs from run to run, and tolerances are those of rounding
  Sequential reference = model.build();
  reference->to(model.type);
  const Samples all(kBatch * n(), model.type);
  test::loss_of(reference, all).backward();
  test::on_ranks(n(), ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential replica = model.build();
    replica->to(model.type);
    if (comm.rank() == 0) test::copy_parameters(*reference, *replica);  // the others get it by wrapping
    DistributedDataParallel ddp(*replica, comm);
    test::loss_of(replica, all.part(comm.rank() * kBatch, kBatch)).backward();
    const auto wanted = reference->parameters();
    const auto got = replica->parameters();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_LE(test::relative_difference(got[i].grad(), wanted[i].grad()), model.gradient_tolerance)
          << "parameter " << i;
    }
  });
}

template <class Optimizer, class Options>
void check_training(const Case& model, int n, const Options& options, double tolerance) {
  torch::manual_seed(1);  // libtorch's own differs from run to run, and tolerances are those of rounding
  Sequential reference = model.build();
  reference->to(model.type);
  Sequential start = model.build();
  start->to(model.type);
  test::copy_parameters(*reference, *start);
  const Samples all(kBatch * n * 20, model.type);
  Optimizer plain(reference->parameters(), options);
  for (int step = 0; step < 20; ++step) {
    plain.zero_grad();
    test::loss_of(reference, all.part(step * kBatch * n, kBatch * n)).backward();
    plain.step();
  }
  test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential replica = model.build();
    replica->to(model.type);
    if (comm.rank() == 0) test::copy_parameters(*start, *replica);
    DistributedDataParallel ddp(*replica, comm);
    paceline::Optimizer<Optimizer> optimizer(ddp, replica->parameters(), options);
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      test::loss_of(replica, all.part((step * n + comm.rank()) * kBatch, kBatch)).backward();
      optimizer.step();
      ASSERT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(replica->parameters()))) << "step " << step;
    }
    const auto wanted = reference->parameters();
    const auto got = replica->parameters();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_LE(test::relative_difference(got[i].detach(), wanted[i].detach()), tolerance) << "parameter " << i;
    }
  });
}

TEST_P(Equality, TwentyStepsOfSgdKeepReplicasEqual) {
  check_training<torch::optim::SGD>(model(), n(), torch::optim::SGDOptions(0.1).momentum(0.9), 1e-5);
}

TEST_P(Equality, TwentyStepsOfAdamKeepReplicasEqual) {
  check_training<torch::optim::Adam>(model(), n(), torch::optim::AdamOptions(1e-3), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Models, Equality,
                         testing::Combine(testing::Values(Case{"MlpFloat", test::mlp, torch::kFloat, 1e-6},
                                                          Case{"MlpDouble", test::mlp, torch::kDouble, 1e-13},
                                                          // Sums over all positions of all images.
                                                          Case{"ConvFloat", test::conv, torch::kFloat, 1e-5},
                                                          Case{"ConvDouble", test::conv, torch::kDouble, 1e-13}),
                                          testing::Values(1, 2, 3, 4)),
                         [](const auto& which) {
                           return std::get<0>(which.param).name + "World" + std::to_string(std::get<1>(which.param));
                         });

// Buckets, engines and repetition change nothing, since the sum is taken in rank order.
TEST(Buckets, MayBeAsLargeAsNumbersGo) {
  const Samples all(2 * kBatch);
  Sequential reference = test::mlp();
  test::loss_of(reference, all).backward();
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential replica = test::mlp();
    if (comm.rank() == 0) test::copy_parameters(*reference, *replica);
    DistributedDataParallel ddp(*replica, comm, {.bucket_bytes = std::numeric_limits<std::size_t>::max()});
    for (int step = 0; step < 2; ++step) {
      for (auto& p : replica->parameters()) p.mutable_grad().reset();
      test::loss_of(replica, all.part(comm.rank() * kBatch, kBatch)).backward();
    }
    EXPECT_LE(test::relative_difference(replica->parameters()[0].grad(), reference->parameters()[0].grad()), 1e-5);
  });
}

TEST(BitEquality, HoldsForEveryBucketSizeEngineAndRun) {
  for (const int n : {2, 3}) {
    Sequential start = test::mlp();
    const Samples all(kBatch * n * 5);
    std::vector<std::uint64_t> hashes;
    const auto train = [&](ThreadEngine engine, std::size_t bucket_bytes) {
      test::on_ranks(n, engine, [&](const Comm& comm) {
        Sequential replica = test::mlp();
        if (comm.rank() == 0) test::copy_parameters(*start, *replica);
        DistributedDataParallel ddp(*replica, comm, {.bucket_bytes = bucket_bytes});
        Optimizer<torch::optim::SGD> optimizer(ddp, replica->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        for (int step = 0; step < 5; ++step) {
          optimizer.zero_grad();
          test::loss_of(replica, all.part((step * n + comm.rank()) * kBatch, kBatch)).backward();
          optimizer.step();
        }
        if (comm.rank() == n - 1) hashes.push_back(test::hash_of_tensors(replica->parameters()));
      });
    };
    for (const std::size_t bucket_bytes : {std::size_t{1} << 10, std::size_t{1} << 20, std::size_t{25} << 20}) {
      train(ThreadEngine::SharedMemory, bucket_bytes);
      train(ThreadEngine::Messages, bucket_bytes);
    }
    for (int run = 0; run < 5; ++run) train(ThreadEngine::SharedMemory, 100);
    for (const std::uint64_t hash : hashes) EXPECT_EQ(hash, hashes[0]) << "world " << n;
  }
}

}  // namespace
}  // namespace paceline
