// Training in processes of their own: random streams, and a worker that is killed in the middle of a step.
#include <gtest/gtest.h>

#include <cmath>
#include <exception>
#include <set>

#include "paceline/train/seed.h"
#include "tests/support/launched_job.h"
#include "tests/train/failures.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

TEST(TrainJob, SeedGivesTheSameInitialisationAndEachRankAStreamOfItsOwn) {
  Job job(run_worker(3, "PrintsRandomNumbers"));
  ASSERT_EQ(job.wait(), 0) << job.err();
  std::map<std::string, std::vector<std::string>> printed;  // by kind, one a rank
  for (const std::string& line : lines_of(job.out())) {
    const auto at = line.find("random ");
    if (at == std::string::npos) continue;
    std::istringstream words(line.substr(at + 7));
    std::string kind, value;
    words >> kind >> value;
    printed[kind].push_back(value);
  }
  ASSERT_EQ(printed["init"].size(), 3u);
  EXPECT_EQ(std::set<std::string>(printed["init"].begin(), printed["init"].end()).size(), 1u);
  ASSERT_EQ(printed["dropout"].size(), 3u);
  EXPECT_EQ(std::set<std::string>(printed["dropout"].begin(), printed["dropout"].end()).size(), 3u);
  Job again(run_worker(3, "PrintsRandomNumbers"));
  ASSERT_EQ(again.wait(), 0);
  auto first = lines_of(job.out()), second = lines_of(again.out());
  std::erase_if(first, [](const std::string& line) { return line.find("random ") == std::string::npos; });
  std::erase_if(second, [](const std::string& line) { return line.find("random ") == std::string::npos; });
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, second) << "a seed gives the same run again";
}

TEST(TrainJob, AWorkerKilledInTheMiddleOfTrainingIsNamedByTheOthers) {
  Job job(run_worker(3, "TrainsUntilRankOneIsKilled"));
  EXPECT_EQ(job.wait(), 128 + SIGKILL) << job.err();
  int heard = 0;
  for (const std::string& line : lines_of(job.out())) heard += line.find("rank 1 (host") != std::string::npos;
  EXPECT_EQ(heard, 2) << job.out() << job.err();
  EXPECT_TRUE(job.leaves_nothing());
}

TEST(TrainJob, ARankThatEvaluatesMoreOftenThanTheOthersEndsTheJob) {
  Job job(run_worker(2, "RankZeroEvaluatesOnceMore", {"--stuck", "0.5"}));
  EXPECT_EQ(job.wait(), 78) << job.err();
  EXPECT_NE(job.err().find("[E305 MISMATCH]"), std::string::npos) << job.err();
}

TEST(TrainJob, AnUncaughtNotFiniteIsToldAsThatOfTheRankThatHadIt) {
  Job job(run_worker(3, "RankOneHasNaN"));
  EXPECT_EQ(job.wait(), 128 + SIGABRT) << job.err();
  EXPECT_NE(job.err().find("rank 1 failed first"), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("s: rank 1's gradient of parameter '"), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("[E502 ABORTED]"), std::string::npos) << job.err();
}

TEST(TrainJob, ThreadsCannotHaveRandomStreamsOfTheirOwn) {
  test::expect_all_say(
      test::failures(2,
                     [](const Comm& comm) {
                       seed(comm, 1);
                       torch::nn::Sequential model = test::mlp();
                       DistributedDataParallel ddp(*model, comm);
                     }),
      {"INVALID_ARGUMENT", "ranks 0 and 1 are threads of one process, which share libtorch's one CPU generator"});
}

// ---- What workers do in the tests above. Disabled, so that they run only as workers.

TEST(Worker, DISABLED_PrintsRandomNumbers) {
  const Comm comm = Comm::from_env();
  seed(comm, 42);
  torch::nn::Sequential model = test::mlp();
  fmt::print("random init {:016x}\n", test::hash_of_tensors(model->parameters()));
  DistributedDataParallel ddp(*model, comm);
  fmt::print("random dropout {:016x}\n", test::hash_of_tensors({torch::rand({100})}));
}

TEST(Worker, DISABLED_TrainsUntilRankOneIsKilled) {
  const Comm comm = Comm::from_env();
  torch::nn::Sequential model = test::mlp();
  DistributedDataParallel ddp(*model, comm);
  Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
  const test::Samples samples(8);
  try {
    for (int step = 0;; ++step) {
      optimizer.zero_grad();
      const auto loss = test::loss_of(model, samples);
      if (step == 20 && comm.rank() == 1) ::raise(SIGKILL);
      loss.backward();
      optimizer.step();
    }
  } catch (const Error& error) {
    fmt::print("heard: {}\n", error.what());
    std::fflush(nullptr);
    ::_exit(1);
  }
}

TEST(Worker, DISABLED_RankZeroEvaluatesOnceMore) {
  const Comm comm = Comm::from_env();
  torch::nn::Sequential model = test::mlp();
  DistributedDataParallel ddp(*model, comm);
  const test::Samples samples(8);
  try {
    // As a line search does that follows a local loss.
    for (int evaluation = 0; evaluation < (comm.rank() == 0 ? 21 : 20); ++evaluation) {
      model->zero_grad();
      test::loss_of(model, samples).backward();
    }
    comm.barrier();
  } catch (const Error&) {
    ::_exit(1);
  }
}

TEST(Worker, DISABLED_RankOneHasNaN) {
  try {
    const Comm comm = Comm::from_env();
    torch::nn::Sequential model = test::mlp();
    DistributedDataParallel ddp(*model, comm);
    (test::loss_of(model, test::Samples(8)) * (comm.rank() == 1 ? NAN : 1)).backward();
  } catch (...) {
    std::terminate();  // as main() does; the test framework would catch it
  }
}

}  // namespace
}  // namespace paceline
