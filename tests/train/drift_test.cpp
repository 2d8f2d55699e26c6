// Replicas that drift apart are found, and named, as early as they can be seen, and never saved or reported unseen.
#include <gtest/gtest.h>

#include "paceline/train/checkpoint.h"
#include "paceline/train/report.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/failures.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

using test::expect_all_say;
using test::failures;
using test::Samples;
using torch::nn::Sequential;

constexpr std::int64_t kBatch = 4;

template <class Disturb>
std::vector<std::string> drift(int n, std::uint64_t every, Disturb disturb) {
  return failures(n, [&](const Comm& comm) {
    Sequential model = test::mlp();
    DistributedDataParallel ddp(*model, comm, {.check_replicas_every = every});
    Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const Samples all(n * kBatch);
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      test::loss_of(model, all.part(comm.rank() * kBatch, kBatch)).backward();
      optimizer.step();
      if (step == 4 && comm.rank() == 1) disturb(model, optimizer);
    }
  });
}

TEST(Drift, OfAParameterNamesItAndTheMinorityRank) {
  const auto disturb = [](Sequential& model, auto&) { model->parameters()[3].data()[0] += 1e-6; };
  expect_all_say(drift(3, 2, disturb),
                 {"E303 MISMATCH", "before step 6", "rank 1 differs from the others of parameter '2.bias'"});
  expect_all_say(drift(2, 3, disturb),
                 {"E303 MISMATCH", "before step 6", "ranks 0, 1 hold different values of parameter '2.bias'"});
}

TEST(Drift, OfALearningRateOrAMomentIsFound) {
  expect_all_say(
      drift(3, 1,
            [](auto&, torch::optim::Optimizer& optimizer) { optimizer.param_groups()[0].options().set_lr(0.01); }),
      {"E303 MISMATCH", "before step 5",
       "rank 1 differs from the others of the scalars of optimizer 0 (learning rate"});
  expect_all_say(drift(3, 1,
                       [](Sequential&, torch::optim::Optimizer& optimizer) {
                         auto& state = static_cast<torch::optim::SGDParamState&>(*optimizer.state().begin()->second);
                         state.momentum_buffer().add_(1);
                       }),
                 {"E303 MISMATCH", "before step 5", "optimizer state '", ".momentum_buffer'"});
}

TEST(Drift, IsNotLookedForWhenSwitchedOff) {
  const auto messages = drift(2, 0, [](Sequential& model, auto&) {
    const torch::NoGradGuard no_grad;
    model->parameters()[0] += 1;
  });
  for (const auto& message : messages) EXPECT_EQ(message, "");
}

// An optimizer of libtorch's changes parameters past their version counters; a program of its own does not.
TEST(Drift, OfAChangeInPlaceIsFoundInTheNextStep) {
  expect_all_say(drift(3, 100,
                       [](Sequential& model, auto&) {
                         const torch::NoGradGuard no_grad;
                         model->parameters()[3][0] += 1e-6;
                       }),
                 {"E303 MISMATCH", "before step 5", "rank 1 differs from the others of parameter '2.bias'"});
}

TEST(Drift, IsNoneWhereARankChangesParametersAndPutsThemBack) {
  const auto messages = drift(2, 100, [](Sequential& model, auto&) {
    const torch::NoGradGuard no_grad;
    const auto before = model->parameters()[0].clone();
    model->parameters()[0].zero_();  // to evaluate with an average, say
    model->parameters()[0].copy_(before);
  });
  for (const auto& message : messages) EXPECT_EQ(message, "");
}

TEST(Drift, OfTheLastElementOfAParameterWithGapsInItsMemory) {
  struct Net : torch::nn::Module {
    torch::Tensor w = register_parameter("w", torch::ones({4, 4}).slice(1, 0, 2).detach());
  };
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Net net;
                            ASSERT_FALSE(net.w.is_non_overlapping_and_dense());
                            DistributedDataParallel ddp(net, comm, {.check_replicas_every = 1});
                            for (int step = 0; step < 3; ++step) {
                              net.w.mutable_grad().reset();
                              net.w.sum().backward();
                              if (step == 1 && comm.rank() == 1) net.w.data()[3][1] += 1;
                            }
                          }),
                 {"E303 MISMATCH", "'w'"});
}

/// Calls `then` with replicas of which rank 1's has drifted past its version counters.
template <class Then>
std::vector<std::string> with_drifted_replicas(Then then) {
  return failures(3, [&](const Comm& comm) {
    Sequential model = test::mlp();
    DistributedDataParallel ddp(*model, comm);
    test::loss_of(model, Samples(kBatch)).backward();
    if (comm.rank() == 1) model->parameters()[2].data().add_(1e-6);
    then(ddp);
  });
}

TEST(Drift, IsNotSaved) {
  const TemporaryFolder folder;
  expect_all_say(with_drifted_replicas([&](DistributedDataParallel& ddp) {
                   JobState job;
                   save(folder.path / "checkpoints", ddp, job);
                 }),
                 {"E303 MISMATCH", "rank 1 differs from the others of parameter '2.weight'", "not saved"});
  EXPECT_FALSE(std::filesystem::exists(folder.path / "checkpoints" / "latest"));
}

TEST(Drift, StandsInTheReport) {
  const auto messages = with_drifted_replicas([](DistributedDataParallel& ddp) {
    const Report report = collect_report(ddp, {.model = "net"});
    if (ddp.comm().rank() != 0) return;
    bool told = false;
    for (const RankSummary& rank : report.ranks) {
      for (const Finding& finding : rank.findings) {
        told |= finding.id == "replicas_drifted" && finding.evidence.find("'2.weight'") != std::string::npos;
      }
    }
    EXPECT_TRUE(told);
  });
  for (const auto& message : messages) EXPECT_EQ(message, "");
}

// Libtorch gives a loaded parameter a new accumulator, so that nothing averages it: seen at the next backward, whatever
// the optimizer is.
TEST(Refused, AModelThatIsLoadedAfterItWasWrapped) {
  const TemporaryFolder folder;
  const std::string path = (folder.path / "model.pt").string();
  torch::save(test::mlp(), path);
  for (const bool all : {true, false}) {
    expect_all_say(failures(2,
                            [&](const Comm& comm) {
                              Sequential model = test::mlp();
                              DistributedDataParallel ddp(*model, comm);
                              if (all || comm.rank() == 1) torch::load(model, path);
                              torch::optim::SGD optimizer(model->parameters(), 0.1);
                              test::loss_of(model, Samples(kBatch)).backward();
                              optimizer.step();
                            }),
                   {"ABORTED", "'0.weight' was cast, moved, loaded (torch::load)", "before wrapping"});
  }
}

}  // namespace
}  // namespace paceline
