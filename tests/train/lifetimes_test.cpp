// Objects that die in another order or on another thread than they were made, and optimizers that change meanwhile.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "paceline/train/data_loader.h"
#include "tests/train/failures.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

using test::Samples;
using torch::nn::Sequential;
using Sgd = Optimizer<torch::optim::SGD>;

/// Large enough that memory is lent to autograd.
Sequential large() {
  return Sequential(torch::nn::Linear(12, 300), torch::nn::Tanh(), torch::nn::Linear(300, 300), torch::nn::Tanh(),
                    torch::nn::Linear(300, 5));
}

TEST(Lifetimes, AWrapperMayBeDestroyedOnAnotherThread) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    Sequential model = large(), other = large();
    auto ddp = std::make_unique<DistributedDataParallel>(*model, comm, DataParallelOptions{.bucket_bytes = 4096});
    test::loss_of(model, Samples(4)).backward();
    std::thread([&] { ddp.reset(); }).join();
    test::loss_of(model, Samples(4)).backward();  // an ordinary one again
    DistributedDataParallel next(*other, comm, {.bucket_bytes = 4096});
    for (int step = 0; step < 2; ++step) {
      for (auto& p : other->parameters()) p.mutable_grad().reset();
      test::loss_of(other, Samples(8).part(comm.rank() * 4, 4)).backward();
      EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(test::gradients_of(*other))));
    }
  });
}

TEST(Lifetimes, AWrapperMayOutliveTheThreadThatMadeIt) {
  Sequential model = large();
  std::unique_ptr<DistributedDataParallel> ddp;
  std::thread([&] {
    ddp = std::make_unique<DistributedDataParallel>(*model, Comm::solo());
    test::loss_of(model, Samples(4)).backward();
  }).join();
  ddp.reset();
  test::loss_of(model, Samples(4)).backward();
}

TEST(Lifetimes, AnOptimizerAndANoSyncMayOutliveTheWrapper) {
  Sequential model = large();
  auto ddp = std::make_unique<DistributedDataParallel>(*model, Comm::solo());
  Sgd optimizer(*ddp, model->parameters(), torch::optim::SGDOptions(0.1));
  {
    const auto only_accumulate = ddp->no_sync();
    ddp.reset();
  }
  test::loss_of(model, Samples(4)).backward();
  try {
    optimizer.step();
    FAIL() << "a step on gradients that nobody averages";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("was destroyed"), std::string::npos) << error.message();
  }
}

TEST(Lifetimes, ALoaderInAForkedChildLeavesItsThreadsToTheParent) {
  const auto data = torch::arange(64).view({64, 1});
  auto loader = std::make_unique<DataLoader>(std::make_shared<TensorDataset>(data, data), Comm::solo(),
                                             LoaderOptions{.batch_size = 4, .threads = 2});
  std::size_t batches = 0;
  for (auto& batch : loader->epoch()) {
    static_cast<void>(batch);
    if (++batches > 1) continue;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(20);  // what hangs is killed
      loader.reset();
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(batches, 16u);
}

TEST(Refused, AParameterThatAnOptimizerGotLaterAndTheModelDoesNotHave) {
  const auto late = [](auto add) {
    return test::failures(2, [&](const Comm& comm) {
      Sequential model = test::mlp();
      DistributedDataParallel ddp(*model, comm, {.name = "net"});
      Sgd optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
      const auto scale = torch::ones({3}).requires_grad_(true);
      add(optimizer, scale);
      (test::loss_of(model, Samples(4)) * scale.sum()).backward();
      optimizer.step();
    });
  };
  const std::vector<std::string> parts{"INVALID_ARGUMENT", "of group ", "Float of shape [3]", "model 'net'"};
  test::expect_all_say(late([](Sgd& o, const torch::Tensor& p) { o.param_groups()[0].params().push_back(p); }), parts);
  test::expect_all_say(late([](Sgd& o, const torch::Tensor& p) { o.param_groups()[0].params()[1] = p; }), parts);
  test::expect_all_say(
      late([](Sgd& o, const torch::Tensor& p) { o.add_param_group(torch::optim::OptimizerParamGroup({p})); }), parts);
}

}  // namespace
}  // namespace paceline
