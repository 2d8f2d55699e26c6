// Models that share parameters, each wrapped: every gradient is that of one process over all ranks' data.
#include <gtest/gtest.h>

#include <random>
#include <sstream>

#include "paceline/train/checkpoint.h"
#include "paceline/train/gradient_norm.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/failures.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

/// A head on a trunk that other models may have too.
struct Headed : torch::nn::Module {
  torch::nn::Linear trunk, head;
  Headed(torch::nn::Linear shared, int out)
      : trunk(register_module("trunk", std::move(shared))), head(register_module("head", torch::nn::Linear(8, out))) {
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(trunk(x).tanh()); }
};

struct ActorCritic {
  torch::nn::Linear trunk{4, 8};
  Headed actor{trunk, 3}, critic{trunk, 1};

  ActorCritic() {
    const torch::NoGradGuard no_grad;
    auto generator = torch::make_generator<at::CPUGeneratorImpl>(5);
    for (auto& p : parameters()) p.copy_(torch::randn(p.sizes(), generator, torch::kDouble));
  }
  std::vector<torch::Tensor> parameters() const {
    return {trunk->weight, trunk->bias, actor.head->weight, actor.head->bias, critic.head->weight, critic.head->bias};
  }
  torch::Tensor actor_loss(const torch::Tensor& x) { return actor.forward(x).pow(2).mean(); }
  torch::Tensor critic_loss(const torch::Tensor& x) { return critic.forward(x).sin().mean(); }
  void clear() const {
    for (auto& p : parameters()) p.mutable_grad().reset();
  }
};

/// How the two losses become gradients.
enum class Losses { Added, OneAfterTheOther, TheOtherFirst };

void backward(ActorCritic& models, const torch::Tensor& x, Losses losses) {
  switch (losses) {
    case Losses::Added: return (models.actor_loss(x) + models.critic_loss(x)).backward();
    case Losses::OneAfterTheOther: models.actor_loss(x).backward(); return models.critic_loss(x).backward();
    case Losses::TheOtherFirst: models.critic_loss(x).backward(); return models.actor_loss(x).backward();
  }
}

/// Keeps this rank busy for a random while, so that ranks are never in step.
void skew(std::mt19937& random) {
  torch::Tensor m = torch::ones({64, 64});
  for (unsigned i = random() % 40; i > 0; --i) m = m.mm(m).clamp(-1, 1);
}

constexpr std::int64_t kRows = 6;

class SharedTrunk : public testing::TestWithParam<std::tuple<int, Losses>> {};

TEST_P(SharedTrunk, GradientsAreThoseOfOneProcess) {
  const auto [ranks, losses] = GetParam();
  auto generator = torch::make_generator<at::CPUGeneratorImpl>(9);
  const auto all = torch::randn({ranks * kRows, 4}, generator, torch::kDouble);
  ActorCritic reference;
  backward(reference, all, losses);
  const auto seed = test::seed();
  test::on_ranks(ranks, ThreadEngine::SharedMemory, [&, losses = losses](const Comm& comm) {
    std::mt19937 random(static_cast<unsigned>(seed + static_cast<unsigned>(comm.rank())));
    ActorCritic models;
    DistributedDataParallel actor(models.actor, comm, {.bucket_bytes = 64, .name = "actor"});
    DistributedDataParallel critic(models.critic, comm, {.bucket_bytes = 64, .name = "critic"});
    for (int step = 0; step < 4; ++step) {
      models.clear();
      skew(random);
      backward(models, all.narrow(0, comm.rank() * kRows, kRows), losses);
      for (std::size_t i = 0; i < models.parameters().size(); ++i) {
        EXPECT_LE(test::relative_difference(models.parameters()[i].grad(), reference.parameters()[i].grad()), 1e-13)
            << "parameter " << i << ", step " << step << ", seed " << seed;
      }
      EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors({models.trunk->weight.grad()})));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, SharedTrunk,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values(Losses::Added, Losses::OneAfterTheOther,
                                                          Losses::TheOtherFirst)));

TEST(SharedParameters, TrainAsInOneProcessWithAnOptimizerForEachModel) {
  constexpr int kRanks = 3;
  const auto all = torch::linspace(-1, 1, kRanks * kRows * 4, torch::kDouble).view({-1, 4}).sin();
  const auto steps = [](ActorCritic& models, auto& actor, auto& critic, const torch::Tensor& x) {
    for (int step = 0; step < 6; ++step) {
      actor.zero_grad(true);
      critic.zero_grad(true);
      backward(models, x, step % 2 == 0 ? Losses::Added : Losses::OneAfterTheOther);
      actor.step();
      critic.step();  // the trunk twice, in one process as well
    }
  };
  struct Plain : torch::optim::SGD {
    using SGD::SGD;
    void zero_grad(bool) {
      for (auto& p : param_groups()[0].params()) p.mutable_grad().reset();
    }
  };
  ActorCritic reference;
  Plain actor(reference.actor.parameters(), torch::optim::SGDOptions(0.1));
  Plain critic(reference.critic.parameters(), torch::optim::SGDOptions(0.05));
  steps(reference, actor, critic, all);
  test::on_ranks(kRanks, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    ActorCritic models;
    DistributedDataParallel actor_ddp(models.actor, comm), critic_ddp(models.critic, comm);
    Optimizer<torch::optim::SGD> a(actor_ddp, models.actor.parameters(), torch::optim::SGDOptions(0.1));
    Optimizer<torch::optim::SGD> c(critic_ddp, models.critic.parameters(), torch::optim::SGDOptions(0.05));
    steps(models, a, c, all.narrow(0, comm.rank() * kRows, kRows));
    for (std::size_t i = 0; i < models.parameters().size(); ++i) {
      EXPECT_LE(test::relative_difference(models.parameters()[i], reference.parameters()[i]), 1e-12);
    }
  });
}

TEST(SharedParameters, OfASubmoduleThatIsWrappedByItselfFirst) {
  const auto all = torch::linspace(-1, 1, 2 * kRows * 4, torch::kDouble).view({-1, 4}).sin();
  ActorCritic reference;
  reference.actor_loss(all).backward();
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    ActorCritic models;
    DistributedDataParallel trunk(*models.trunk, comm, {.name = "trunk"}), actor(models.actor, comm);
    for (int step = 0; step < 3; ++step) {
      models.clear();
      models.actor_loss(all.narrow(0, comm.rank() * kRows, kRows)).backward();
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_LE(test::relative_difference(models.parameters()[i].grad(), reference.parameters()[i].grad()), 1e-13);
      }
    }
  });
}

TEST(SharedParameters, AreClippedAndNamedWithTheModelThatHasThem) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    ActorCritic models;
    DistributedDataParallel actor(models.actor, comm), critic(models.critic, comm);
    models.critic_loss(torch::ones({2, 4}, torch::kDouble)).backward();
    double squares = 0;
    for (const auto& p : models.critic.parameters()) squares += p.grad().square().sum().item<double>();
    EXPECT_NEAR(clip_grad_norm(critic, 1e9), std::sqrt(squares), 1e-12);
    EXPECT_EQ(critic.trained().size(), 4u);
  });
}

TEST(SharedParameters, AreNotAveragedWhileTheirWrapperAccumulates) {
  ActorCritic models;
  DistributedDataParallel actor(models.actor, Comm::solo()), critic(models.critic, Comm::solo());
  {
    const auto only_accumulate = actor.no_sync();
    models.critic_loss(torch::ones({2, 4}, torch::kDouble)).backward();
  }
  EXPECT_FALSE(critic.averaged());
  EXPECT_THROW(clip_grad_norm(critic, 1), Error);
  actor.average();
  EXPECT_TRUE(critic.averaged());
}

TEST(SharedParameters, ThatAreAccumulatedAreNotSavedAndHeadsMayStepMeanwhile) {
  const TemporaryFolder folder;
  ActorCritic models;
  DistributedDataParallel actor(models.actor, Comm::solo()), critic(models.critic, Comm::solo());
  Optimizer<torch::optim::SGD> head(critic, models.critic.head->parameters(), torch::optim::SGDOptions(0.1));
  const auto only_accumulate = actor.no_sync();
  models.critic_loss(torch::ones({2, 4}, torch::kDouble)).backward();
  EXPECT_NO_THROW(head.step());
  EXPECT_EQ(critic.accumulated(), 1u);
  JobState job;
  EXPECT_THROW(save(folder.path, critic, job), Error);
}

TEST(Refused, ASharedTrunkThatIsLoadedAfterItWasWrapped) {
  std::stringstream file;
  torch::save(ActorCritic().trunk, file);
  const std::string bytes = file.str();
  const auto messages = test::failures(2, [&](const Comm& comm) {
    ActorCritic models;
    DistributedDataParallel actor(models.actor, comm, {.name = "actor"}), critic(models.critic, comm);
    std::stringstream again(bytes);
    torch::load(models.trunk, again);
    models.critic_loss(torch::ones({2, 4}, torch::kDouble)).backward();
  });
  test::expect_all_say(messages, {"ABORTED", "'trunk.weight'", "loaded"});
}

TEST(Refused, AModelOfWhichAllParametersAreWrappedAlready) {
  const auto messages = test::failures(2, [](const Comm& comm) {
    ActorCritic models;
    DistributedDataParallel actor(models.actor, comm, {.name = "actor"});
    DistributedDataParallel again(models.actor, comm, {.name = "again"});
  });
  test::expect_all_say(messages, {"INVALID_ARGUMENT", "model 'again'", "'trunk.weight'", "wrapped already"});
}

TEST(Refused, SharedParametersThatWouldBeAveragedInTwoWays) {
  test::expect_all_say(test::failures(2,
                                      [](const Comm& comm) {
                                        ActorCritic models;
                                        DistributedDataParallel actor(models.actor, comm, {.name = "actor"});
                                        DistributedDataParallel critic(models.critic, comm,
                                                                       {.reduction = Reduction::Sum});
                                      }),
                       {"'trunk.weight'", "'actor'", "another Reduction"});
  test::expect_all_say(test::failures(2,
                                      [](const Comm& comm) {
                                        const Comm alone = comm.split(comm.rank());
                                        ActorCritic models;
                                        DistributedDataParallel actor(models.actor, alone, {.name = "actor"});
                                        DistributedDataParallel critic(models.critic, comm);
                                      }),
                       {"'trunk.weight'", "'actor'", "over 1 rank(s), not 2"});
  // Two pairs of four ranks, in two ways.
  test::expect_all_say(test::failures(4,
                                      [](const Comm& comm) {
                                        const Comm rows = comm.split(comm.rank() / 2),
                                                   columns = comm.split(comm.rank() % 2);
                                        ActorCritic models;
                                        DistributedDataParallel actor(models.actor, rows, {.name = "actor"});
                                        DistributedDataParallel critic(models.critic, columns);
                                      }),
                       {"'trunk.weight'", "'actor'", "with other ranks"});
}

TEST(Refused, ABackwardAfterTheWrapperThatAveragedItsTrunkWasDestroyed) {
  const auto messages = test::failures(2, [](const Comm& comm) {
    ActorCritic models;
    auto actor = std::make_unique<DistributedDataParallel>(models.actor, comm, DataParallelOptions{.name = "actor"});
    DistributedDataParallel critic(models.critic, comm);
    models.critic_loss(torch::ones({2, 4}, torch::kDouble)).backward();
    actor.reset();
    models.critic_loss(torch::ones({2, 4}, torch::kDouble)).backward();
  });
  test::expect_all_say(messages, {"'trunk.weight'", "'actor'", "was destroyed"});
}

TEST(Refused, AStepWhileTheTrunkIsOnlyAccumulated) {
  const auto messages = test::failures(2, [](const Comm& comm) {
    ActorCritic models;
    DistributedDataParallel actor(models.actor, comm, {.name = "actor"}), critic(models.critic, comm);
    Optimizer<torch::optim::SGD> optimizer(critic, models.critic.parameters(), torch::optim::SGDOptions(0.1));
    const auto only_accumulate = actor.no_sync();
    models.critic_loss(torch::ones({2, 4}, torch::kDouble)).backward();
    optimizer.step();
  });
  test::expect_all_say(messages, {"'trunk.weight'", "'actor'", "accumulated and not averaged"});
}

}  // namespace
}  // namespace paceline
