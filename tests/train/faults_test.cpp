// What one rank may do wrong in the middle of training, as processes: all ranks end, with one cause that names it.
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>

#include "paceline/comm/comm.h"
#include "tests/support/launched_job.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

struct Wrong {
  const char* name;
  std::vector<std::string> heard;  // by the others, all of it in one line
};

class Faults : public testing::TestWithParam<Wrong> {};

TEST_P(Faults, OfRankOneEndAllRanksWithOneCauseThatNamesIt) {
  Job job(run_worker(3, "TrainsButRankOneGoesWrong", {"--timeout", "2"}),
          {.environment = {{"TEST_FAULT", GetParam().name}}});
  EXPECT_NE(job.wait(), 0);
  for (const int rank : {0, 2}) {
    const auto lines = lines_of(job.out());
    const auto line = std::find_if(lines.begin(), lines.end(), [&](const std::string& one) {
      return one.starts_with(fmt::format("[rank {}] heard: ", rank));
    });
    ASSERT_NE(line, lines.end()) << "rank " << rank << ": " << job.out() << job.err();
    for (const std::string& part : GetParam().heard) EXPECT_NE(line->find(part), std::string::npos) << *line;
  }
  EXPECT_TRUE(job.leaves_nothing());
}

const std::vector<Wrong> kFaults{
    {"shape", {"E302 MISMATCH", "rank 0 (signature", "where rank 1 (signature", "Float [5, 17]", "Float [6, 17]"}},
    {"count",
     {"E301 MISMATCH", "rank 0 calls all_reduce", "(float32 x 3, sum)", "but rank 1 calls", "(float32 x 4, sum)"}},
    {"operation", {"E301 MISMATCH", "rank 0 calls all_reduce", "but rank 1 calls broadcast"}},
    {"barrier", {"E301 MISMATCH", "rank 0 calls ", "but rank 1 calls barrier"}},
    {"exception", {"E501 ABORTED", "rank 1 gave up: no such image"}},
    {"kill", {"E201 PEER_LOST", "rank 1 (host", "killed by signal 9 (SIGKILL)"}},
    {"absence", {"E401 TIMEOUT", "for rank 1, which is at "}},
};

INSTANTIATE_TEST_SUITE_P(Kinds, Faults, testing::ValuesIn(kFaults),
                         [](const auto& fault) { return std::string(fault.param.name); });

// ---- What workers do in the tests above. Disabled, so that they run only as workers.

torch::nn::Sequential model_of(int classes) {
  return torch::nn::Sequential(torch::nn::Linear(12, 17), torch::nn::Tanh(), torch::nn::Linear(17, classes));
}

void train(const Comm& comm, const std::string& fault) {
  const auto goes_wrong = [&](const char* name) { return comm.rank() == 1 && fault == name; };
  torch::nn::Sequential model = model_of(goes_wrong("shape") ? 6 : 5);
  DistributedDataParallel ddp(*model, comm);
  Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
  const test::Samples samples(8);
  for (int step = 0;; ++step) {
    optimizer.zero_grad();
    const auto loss = test::loss_of(model, samples);
    if (step == 3) {
      std::vector<float> figures(goes_wrong("count") ? 4 : 3);
      if (goes_wrong("barrier")) comm.barrier();
      if (goes_wrong("exception")) throw std::runtime_error("no such image");
      if (goes_wrong("kill")) ::raise(SIGKILL);
      if (goes_wrong("absence")) ::pause();
      if (goes_wrong("operation")) comm.broadcast<float>(figures);
      else comm.all_reduce<float>(figures);
    }
    loss.backward();
    optimizer.step();
  }
}

TEST(Worker, DISABLED_TrainsButRankOneGoesWrong) {
  std::optional<Comm> comm;
  try {
    comm = Comm::from_env();
    train(*comm, std::getenv("TEST_FAULT"));
  } catch (const std::exception& error) {
    fmt::print("heard: {}\n", error.what());
    std::fflush(nullptr);
    if (comm) comm->abort(error.what());
    ::_exit(1);
  }
}

}  // namespace
}  // namespace paceline
