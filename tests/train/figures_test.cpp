// What ranks tell each other and a human: metrics, tensors, and what a model is.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "paceline/observe/metrics.h"
#include "paceline/train/gather.h"
#include "tests/train/failures.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

using test::expect_all_say;
using test::failures;
using torch::nn::Sequential;

TEST(Explain, SaysWhatTheModelIsAndWhatHappened) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    Sequential model = test::mlp();
    model->parameters()[5].requires_grad_(false);
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 1024, .name = "net"});
    model[2]->as<torch::nn::Linear>()->forward(torch::randn({2, 33})).sum().backward();
    const std::string text = ddp.explain();
    for (const char* part : {"model 'net': 1092 trained parameters in 5 tensors, 1 frozen", "of 2 over shm",
                             "bucket 1:", "1 averagings, 0 of them dropped", "'0.weight' took no part on any rank"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in:\n" << text;
    }
  });
}

TEST(Metrics, AreThoseOfOneProcess) {
  test::on_ranks(3, ThreadEngine::SharedMemory, [](const Comm& comm) {
    Metrics metrics;
    metrics.mean("loss", std::numeric_limits<double>::quiet_NaN(), 0);
    for (int i = 0; i <= comm.rank(); ++i) metrics.mean("loss", comm.rank(), 10);
    metrics.sum("right", comm.rank() + 1);
    const auto all = metrics.over(comm);
    EXPECT_DOUBLE_EQ(all.at("loss"), (0 * 1 + 1 * 2 + 2 * 3) / 6.0);
    EXPECT_DOUBLE_EQ(all.at("right"), 6);
    EXPECT_THROW(metrics.sum("loss", 1), Error);
  });
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Metrics metrics;
                            metrics.sum(comm.rank() == 0 ? "a" : "b", 1);
                            metrics.over(comm);
                          }),
                 {"MISMATCH", "rank 0 has the figures a", "rank 1 has b"});
}

TEST(Gather, TakesTensorsOfDifferentLengths) {
  test::on_ranks(3, ThreadEngine::SharedMemory, [](const Comm& comm) {
    for (const auto type : {torch::kFloat, torch::kInt64, torch::kBool, torch::kBFloat16}) {
      const auto of_rank = [&](int rank) { return torch::arange(rank * 4).view({rank * 2, 2}).to(type); };
      const auto all = gather(comm, of_rank(comm.rank()));
      ASSERT_EQ(all.size(), 3u);
      for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(all[rank].equal(of_rank(rank)));
    }
    EXPECT_THROW(gather(comm, torch::tensor(1)), Error);
  });
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            gather(comm, torch::ones({2, comm.rank() + 1}));
                          }),
                 {"MISMATCH", "rank 0 has Float [*, 1], but rank 1 has Float [*, 2]"});
}

}  // namespace
}  // namespace paceline
