// Optimizers that are none of the usual ones: LBFGS, whose closure is called as often as its loss says, and classes of
// the user's own, with and without a save() of theirs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "paceline/train/steps.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/failures.h"
#include "tests/train/saved_job.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using test::expect_all_say;
using test::failures;
using test::Samples;
using torch::nn::Sequential;
using torch::optim::LBFGS;
using torch::optim::LBFGSOptions;

constexpr std::int64_t kBatch = 4;

Sequential small_model() {
  Sequential model(torch::nn::Linear(12, 6), torch::nn::Tanh(), torch::nn::Linear(6, 5));
  model->to(torch::kDouble);
  return model;
}

/// The same values each time.
Sequential start_model() {
  Sequential model = small_model();
  const torch::NoGradGuard no_grad;
  auto generator = torch::make_generator<at::CPUGeneratorImpl>(3);
  for (const auto& parameter : model->parameters()) parameter.normal_(0, 0.3, generator);
  return model;
}

torch::Tensor sum_loss_of(Sequential& model, const Samples& samples) {
  namespace F = torch::nn::functional;
  return F::cross_entropy(model->forward(samples.data), samples.target,
                          F::CrossEntropyFuncOptions().reduction(torch::kSum));
}

LBFGSOptions lbfgs_options(bool line_search) {
  LBFGSOptions options(line_search ? 1 : 0.1);
  options.max_iter(6).history_size(4);
  if (line_search) options.line_search_fn("strong_wolfe");
  return options;
}

void expect_same_parameters(const torch::nn::Module& model, const torch::nn::Module& reference) {
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    EXPECT_LT(test::relative_difference(model.parameters()[i], reference.parameters()[i]), 1e-10) << "parameter " << i;
  }
}

// Each rank's loss is another, and LBFGS decides by it how often it calls the closure.
TEST(Lbfgs, OfSeveralRanksIsThatOfOneProcessWithTheWholeBatch) {
  for (const bool line_search : {false, true}) {
    for (const int n : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << n << " ranks, line search " << line_search);
      const Samples all(kBatch * n, torch::kDouble);
      Sequential reference = start_model();
      LBFGS plain(reference->parameters(), lbfgs_options(line_search));
      std::vector<double> losses;
      for (int step = 0; step < 4; ++step) {
        losses.push_back(plain
                             .step([&] {
                               plain.zero_grad();
                               torch::Tensor loss = test::loss_of(reference, all);
                               loss.backward();
                               return loss;
                             })
                             .item<double>());
      }
      test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
        Sequential model = start_model();
        DistributedDataParallel ddp(*model, comm);
        Optimizer<LBFGS> optimizer(ddp, model->parameters(), lbfgs_options(line_search));
        const Samples own = all.part(comm.rank() * kBatch, kBatch);
        for (int step = 0; step < 4; ++step) {
          const torch::Tensor loss = optimizer.step([&] {
            optimizer.zero_grad();
            torch::Tensor of_rank = test::loss_of(model, own);
            of_rank.backward();
            return of_rank;
          });
          EXPECT_NEAR(loss.item<double>(), losses[static_cast<std::size_t>(step)], 1e-10);
        }
        expect_same_parameters(*model, *reference);
        EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(model->parameters())));
      });
    }
  }
}

// Rank r has r + 1 samples. The loss that libtorch sees is that of the gradients: the sum, or the mean by samples.
TEST(Lbfgs, SumsAndWeightedMeansAreThoseOfOneProcess) {
  for (const Reduction reduction : {Reduction::Sum, Reduction::Weighted}) {
    for (const int n : {1, 3}) {
      SCOPED_TRACE(testing::Message() << n << " ranks, weighted " << (reduction == Reduction::Weighted));
      const std::int64_t count = n * (n + 1) / 2;
      const Samples all(count, torch::kDouble);
      const double divisor = reduction == Reduction::Weighted ? static_cast<double>(count) : 1;
      Sequential reference = start_model();
      LBFGS plain(reference->parameters(), lbfgs_options(true));
      for (int step = 0; step < 3; ++step) {
        plain.step([&] {
          plain.zero_grad();
          torch::Tensor loss = sum_loss_of(reference, all) / divisor;
          loss.backward();
          return loss;
        });
      }
      test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
        Sequential model = start_model();
        DistributedDataParallel ddp(*model, comm, {.reduction = reduction});
        LBFGS optimizer(model->parameters(), lbfgs_options(true));  // libtorch's own
        const int rank = comm.rank();
        const Samples own = all.part(rank * (rank + 1) / 2, rank + 1);
        for (int step = 0; step < 3; ++step) {
          const auto closure = [&] {
            optimizer.zero_grad();
            if (reduction == Reduction::Weighted) ddp.set_weight(rank + 1);
            torch::Tensor loss = sum_loss_of(model, own);
            loss.backward();
            return loss;
          };
          optimizer.step([&] { return ddp.evaluate(closure); });
        }
        expect_same_parameters(*model, *reference);
      });
    }
  }
}

/// A job of one rank.
template <class Base, class Options>
struct Job {
  Sequential model = start_model();
  DistributedDataParallel ddp;
  Optimizer<Base> optimizer;
  Samples own;
  JobState state;

  Job(const Comm& comm, const Options& options, DataParallelOptions how = {})
      : ddp(*model, comm, how),
        optimizer(ddp, model->parameters(), options),
        own(Samples(kBatch * comm.world_size(), torch::kDouble).part(comm.rank() * kBatch, kBatch)) {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      optimizer.step([&] {
        optimizer.zero_grad();
        torch::Tensor loss = test::loss_of(model, own);
        loss.backward();
        return loss;
      });
    }
  }
  std::uint64_t hash() { return test::hash_of_job(*model, optimizer, ddp); }
};

using LbfgsJob = Job<LBFGS, LBFGSOptions>;

TEST(Lbfgs, IsComparedBetweenRanksFromItsFirstClosureOn) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    LBFGSOptions options(0.05);
    options.max_iter(2).history_size(3);
    LbfgsJob often(comm, options, {.check_replicas_every = 1});
    often.run(5);
    LbfgsJob job(comm, options, {.check_replicas_every = 10});
    job.run(120);
    EXPECT_GE(job.ddp.rounds(), 120u);
  });
  const auto messages = failures(2, [](const Comm& comm) {
    LbfgsJob job(comm, lbfgs_options(false), {.check_replicas_every = 1});
    job.run(2);
    auto& state = static_cast<torch::optim::LBFGSParamState&>(*job.optimizer.state().begin()->second);
    if (comm.rank() == 1) state.d().mul_(2);
    job.run(2);
  });
  expect_all_say(messages, {"E303", "optimizer state '0.weight.d'"});
}

TEST(Lbfgs, ThreeAndThreeStepsAreSixBitForBit) {
  for (const bool line_search : {false, true}) {
    for (const int steps_before : {0, 1, 3}) {
      const TemporaryFolder folder;
      test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
        LbfgsJob whole(comm, lbfgs_options(line_search)), first(comm, lbfgs_options(line_search));
        whole.run(steps_before + 3);
        first.run(steps_before);
        save(folder.path, first.ddp, first.state);
        LbfgsJob second(comm, LBFGSOptions(0.7));
        second.run(1);  // a state that goes
        ASSERT_TRUE(load(folder.path, second.ddp, second.state));
        EXPECT_EQ(second.hash(), first.hash());
        second.run(3);
        EXPECT_EQ(second.hash(), whole.hash());
      });
    }
  }
}

// Which have no part in the loss, and in the end the state of those that went on.
TEST(Lbfgs, RanksThatEndEarlyLetTheOthersGoOn) {
  test::on_ranks(3, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    LbfgsJob job(comm, lbfgs_options(true), {.check_replicas_every = 1});
    job.run(comm.rank() + 1);
    job.ddp.join();
    EXPECT_TRUE(test::same_on_all_ranks(comm, job.hash()));
    job.run(2);
    EXPECT_TRUE(test::same_on_all_ranks(comm, job.hash()));
  });
}

TEST(Lbfgs, RanksThatStopTogetherHaveTheSameState) {
  test::on_ranks(3, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    LbfgsJob job(comm, lbfgs_options(true), {.uneven = Uneven::Stop, .check_replicas_every = 1});
    for (int step = 0; step <= comm.rank() && !job.ddp.stop_agreed(); ++step) job.run(1);
    job.ddp.join();
    EXPECT_TRUE(test::same_on_all_ranks(comm, job.hash()));
    job.run(2);
    EXPECT_TRUE(test::same_on_all_ranks(comm, job.hash()));
  });
}

TEST(Closure, ALossThatIsNoNumberOrMissingOnARankIsSaidByAll) {
  const auto run = [](const Comm& comm, const std::function<torch::Tensor(torch::Tensor)>& returned) {
    Job<torch::optim::SGD, torch::optim::SGDOptions> job(comm, torch::optim::SGDOptions(0.1));
    job.optimizer.step([&] {
      job.optimizer.zero_grad();
      torch::Tensor loss = test::loss_of(job.model, job.own);
      loss.backward();
      return returned(loss);
    });
  };
  expect_all_say(failures(2,
                          [&](const Comm& comm) {
                            run(comm, [&](torch::Tensor loss) { return comm.rank() == 1 ? torch::Tensor() : loss; });
                          }),
                 {"the closure of rank 0 returned a loss, but that of rank 1 none"});
  expect_all_say(
      failures(2, [&](const Comm& comm) { run(comm, [&](torch::Tensor loss) { return loss.expand({3}); }); }),
      {"a closure returned a loss of 3 elements"});
  test::on_ranks(2, ThreadEngine::SharedMemory,
                 [&](const Comm& comm) { run(comm, [](const torch::Tensor&) { return torch::Tensor(); }); });
}

// ---- Classes of the user's own. Their options are taken for libtorch's by nobody.

/// A heavy ball, whose velocities are its own members.
class HeavyBall : public torch::optim::Optimizer {
 public:
  HeavyBall(std::vector<torch::Tensor> parameters, const torch::optim::SGDOptions& options)
      : torch::optim::Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(options)) {}

  torch::Tensor step(LossClosure closure) override {
    torch::Tensor loss;
    if (closure) loss = closure();
    const torch::NoGradGuard no_grad;
    const auto& parameters = param_groups()[0].params();
    velocities.resize(parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].grad().defined()) continue;
      if (!velocities[i].defined()) velocities[i] = torch::zeros_like(parameters[i]);
      velocities[i].mul_(0.9).add_(parameters[i].grad());
      parameters[i].sub_(velocities[i] * param_groups()[0].options().get_lr());
    }
    return loss;
  }

  std::vector<torch::Tensor> velocities;
};

class SavedHeavyBall : public HeavyBall {
 public:
  using HeavyBall::HeavyBall;

  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("count", torch::tensor(static_cast<std::int64_t>(velocities.size())));
    for (std::size_t i = 0; i < velocities.size(); ++i) archive.write(fmt::format("v{}", i), velocities[i]);
    archive.write("lr", torch::tensor(param_groups()[0].options().get_lr(), torch::kDouble));
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::Tensor count, lr;
    archive.read("count", count);
    archive.read("lr", lr);
    velocities.resize(static_cast<std::size_t>(count.item<std::int64_t>()));
    for (std::size_t i = 0; i < velocities.size(); ++i) archive.read(fmt::format("v{}", i), velocities[i]);
    param_groups()[0].options().set_lr(lr.item<double>());
  }
};

using PlainJob = Job<HeavyBall, torch::optim::SGDOptions>;
using SavedJob = Job<SavedHeavyBall, torch::optim::SGDOptions>;

TEST(OwnOptimizer, TrainsAndIsComparedAsFarAsItIsKnown) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    PlainJob job(comm, torch::optim::SGDOptions(0.01), {.check_replicas_every = 1});
    job.run(5);
    EXPECT_TRUE(test::same_on_all_ranks(comm, job.hash()));
  });
  const auto messages = failures(2, [](const Comm& comm) {
    PlainJob job(comm, torch::optim::SGDOptions(0.01), {.check_replicas_every = 1});
    job.run(2);
    if (comm.rank() == 1) job.optimizer.param_groups()[0].options().set_lr(0.5);
    job.run(2);
  });
  expect_all_say(messages, {"E303", "the scalars of optimizer 0 (learning rate"});
}

TEST(OwnOptimizer, WithoutASaveIsRefusedByNameAndTrainingGoesOn) {
  const TemporaryFolder folder;
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    PlainJob job(comm, torch::optim::SGDOptions(0.01));
    job.run(2);
    try {
      save(folder.path, job.ddp, job.state);
      ADD_FAILURE() << "saved";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      expect_all_say({error.message()},
                     {"HeavyBall cannot be saved", "Override torch::optim::Optimizer::save() and load()"});
    }
    job.run(1);
  });
  EXPECT_TRUE(fs::is_empty(folder.path));
}

TEST(OwnOptimizer, WithASaveGoesOnFromACheckpointBitForBit) {
  const TemporaryFolder folder;
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    const torch::optim::SGDOptions options(0.05);
    SavedJob whole(comm, options), first(comm, options);
    whole.run(6);
    first.run(3);
    save(folder.path, first.ddp, first.state);
    SavedJob second(comm, torch::optim::SGDOptions(0.7));
    ASSERT_TRUE(load(folder.path, second.ddp, second.state));
    EXPECT_EQ(second.hash(), first.hash());
    EXPECT_EQ(second.optimizer.velocities.size(), 4u);
    second.run(3);
    EXPECT_EQ(second.hash(), whole.hash());
    PlainJob other(comm, options);
    try {
      load(folder.path, other.ddp, other.state);
      ADD_FAILURE() << "loaded";
    } catch (const Error& error) {
      EXPECT_NE(error.message().find("HeavyBall, what is to be loaded is of"), std::string::npos) << error.message();
    }
  });
}

TEST(OwnOptimizer, IsHandedOnToRanksThatEndedEarlyOrTheReportSaysThatItIsNot) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    SavedJob saved(comm, torch::optim::SGDOptions(0.05), {.check_replicas_every = 1});
    saved.run(comm.rank() + 1);
    saved.ddp.join();
    EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(saved.optimizer.velocities)));
    saved.run(2);
    EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(saved.model->parameters())));
    const auto has_finding = [](const DistributedDataParallel& ddp) {
      const auto findings = ddp.recorder().summary().findings;
      return std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
        return finding.id == "optimizer_not_handed_on" && finding.evidence.find("HeavyBall") != std::string::npos;
      });
    };
    EXPECT_FALSE(has_finding(saved.ddp));
    PlainJob plain(comm, torch::optim::SGDOptions(0.05));
    plain.run(comm.rank() + 1);
    plain.ddp.join();
    EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(plain.model->parameters())));
    EXPECT_TRUE(has_finding(plain.ddp));
  });
}

}  // namespace
}  // namespace paceline
