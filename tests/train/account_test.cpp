// Where a step's time goes: a delay put into one part is found in that part, and the parts add up to the step.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "paceline/observe/breakdown.h"
#include "paceline/train/data_loader.h"
#include "paceline/train/report.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

using torch::nn::Sequential;

constexpr auto kDelay = std::chrono::milliseconds(40);
constexpr int kSteps = 7;

enum class Part { None, DataWait, Forward, Backward, LatePeer, Optimizer, Other };

void delay(Part where, Part wanted) {
  if (where == wanted) std::this_thread::sleep_for(kDelay);  // the delay that is to be found
}

struct SlowDataset final : Dataset {
  Part part;
  explicit SlowDataset(Part p) : part(p) {}
  std::size_t size() const override { return 4 * kSteps * 2; }
  Batch get(std::span<const std::uint64_t> indices) const override {
    delay(part, Part::DataWait);
    const auto n = static_cast<std::int64_t>(indices.size());
    return {torch::ones({n, 12}), torch::zeros({n}, torch::kInt64)};
  }
};

struct SlowBackward : torch::autograd::Function<SlowBackward> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, torch::Tensor x) { return x * 1; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    std::this_thread::sleep_for(kDelay);
    return gradients;
  }
};

struct SlowSgd : torch::optim::SGD {
  Part part = Part::None;
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    delay(part, Part::Optimizer);
    return SGD::step(std::move(closure));
  }
};

/// The breakdowns of rank 0's steps with the delay in `part`.
std::vector<StepBreakdown> steps_with(Part part) {
  std::vector<StepBreakdown> steps;
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential model = test::mlp();
    DistributedDataParallel ddp(*model, comm);
    Optimizer<SlowSgd> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
    optimizer.part = part;
    DataLoader loader(std::make_shared<SlowDataset>(part), comm, {.batch_size = 4, .threads = 0});
    if (comm.rank() == 0) comm.timeline().set_sink([&](const StepEvents& e) { steps.push_back(breakdown(e)); });
    for (auto& batch : loader.epoch()) {
      optimizer.zero_grad();
      delay(part, Part::Forward);
      auto out = model->forward(batch.data);
      if (part == Part::Backward) out = SlowBackward::apply(out);
      if (comm.rank() == 1) delay(part, Part::LatePeer);
      torch::nn::functional::cross_entropy(out, batch.target).backward();
      optimizer.step();
      delay(part, Part::Other);
    }
  });
  return steps;
}

double median(const std::vector<StepBreakdown>& steps, double StepBreakdown::*part) {
  std::vector<double> values;
  for (const StepBreakdown& step : steps) values.push_back(step.*part);
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Sleeping on purpose: the length of the delay is what is measured. The median of seven steps withstands a busy
// machine.
TEST(Account, ADelayIsFoundWhereItWasPut) {
  const std::vector<std::pair<Part, double StepBreakdown::*>> parts{
      {Part::DataWait, &StepBreakdown::data_wait_s},  {Part::Forward, &StepBreakdown::forward_s},
      {Part::Backward, &StepBreakdown::backward_s},   {Part::LatePeer, &StepBreakdown::exposed_comm_s},
      {Part::Optimizer, &StepBreakdown::optimizer_s}, {Part::Other, &StepBreakdown::other_s}};
  const double injected = seconds(kDelay);
  for (const auto& [part, field] : parts) {
    const auto steps = steps_with(part);
    ASSERT_EQ(steps.size(), static_cast<std::size_t>(kSteps)) << "every step is accounted for, the last one too";
    EXPECT_NEAR(median(steps, field), injected, 0.1 * injected) << "delay in part " << static_cast<int>(part);
    for (const auto& [other, other_field] : parts) {
      if (other_field == field) continue;
      EXPECT_LT(median(steps, other_field), 0.1 * injected)
          << "delay in " << static_cast<int>(part) << " is seen in " << static_cast<int>(other);
    }
  }
}

TEST(Account, EvaluationIsNoStepAndALoopLeftEarlyLosesNone) {
  std::size_t steps = 0;
  const Comm comm = Comm::solo();
  Sequential model = test::mlp();
  DistributedDataParallel ddp(*model, comm);
  Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
  DataLoader loader(std::make_shared<SlowDataset>(Part::None), comm, {.batch_size = 4});
  comm.timeline().set_sink([&](const StepEvents&) { ++steps; });
  int done = 0;
  for (auto& batch : loader.epoch()) {
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target).backward();
    optimizer.step();
    if (++done == 3) break;
  }
  EXPECT_EQ(steps, 3u);
  for (auto& batch : loader.epoch()) model->forward(batch.data);
  EXPECT_EQ(steps, 3u);
}

TEST(Account, TheReportKnowsTheRun) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    Sequential model = test::mlp();
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 4096});
    Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
    DataLoader loader(std::make_shared<SlowDataset>(Part::None), comm, {.batch_size = 4});
    for (auto& batch : loader.epoch()) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target).backward();
      optimizer.step();
    }
    ReportOptions options;
    options.model = "mlp";
    options.optimizer = "sgd";
    options.batch_per_rank = 4;
    options.test_accuracy = 0.5;
    const Report report = collect_report(ddp, options);
    EXPECT_EQ(report.run.steps, static_cast<std::uint64_t>(kSteps));
    EXPECT_EQ(report.run.world, 2);
    EXPECT_EQ(report.config.parameters, 12u * 33 + 33 + 33 * 17 + 17 + 17 * 5 + 5);
    EXPECT_EQ(report.config.bucket_bytes, 4096u);
    EXPECT_EQ(report.ranks.size(), 2u);
    EXPECT_GT(report.samples_per_s, 0);
    EXPECT_FALSE(report.speedup_vs_one.has_value()) << "nobody measured it";
    // All samples of this data set are the same, and that is found.
    const auto same = std::find_if(report.findings.begin(), report.findings.end(),
                                   [](const Finding& f) { return f.id == "same_batch"; });
    EXPECT_NE(same, report.findings.end());
  });
}

/// What a report says of a few steps with these options.
Report report_with(DataParallelOptions options) {
  Report report;
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential model = test::mlp();
    DistributedDataParallel ddp(*model, comm, options);
    Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < kSteps; ++step) {
      comm.timeline().begin_step(Phase::Forward);
      optimizer.zero_grad();
      test::loss_of(model, test::Samples(6)).backward();
      optimizer.step();
    }
    comm.timeline().pause();
    const Report own = collect_report(ddp, {.model = "mlp"});
    if (comm.rank() == 0) report = own;
  });
  return report;
}

TEST(Account, TheReportCountsWhatEachWayOfCommunicatingSent) {
  const Report exact = report_with({.bucket_bytes = 512});
  const auto& as_is = exact.ranks.at(0).breakdown;
  EXPECT_EQ(exact.config.codec, "none");
  EXPECT_GT(as_is.operations, 2);
  for (const Wire wire : {Wire::Float16, Wire::BFloat16}) {
    const Report report = report_with({.bucket_bytes = 512, .wire = wire});
    const auto& step = report.ranks.at(0).breakdown;
    EXPECT_EQ(report.config.codec, wire == Wire::Float16 ? "float16" : "bfloat16");
    EXPECT_EQ(step.comm_bytes, as_is.comm_bytes / 2);
    EXPECT_EQ(step.operations, as_is.operations);
    EXPECT_GT(step.hidden_comm_s + step.exposed_comm_s, 0);
  }
  const Report hook =
      report_with({.bucket_bytes = 512, .reduce_bucket = [](const GradientBucket& bucket) {
                     return [values = bucket.values, with = bucket.comm]() mutable {
                       with.all_reduce<float>(std::span(values.data_ptr<float>(), values.numel()), ReduceOp::Mean);
                     };
                   }});
  EXPECT_EQ(hook.config.codec, "hook");
  EXPECT_EQ(hook.ranks.at(0).breakdown.comm_bytes, as_is.comm_bytes);
  EXPECT_GT(hook.ranks.at(0).breakdown.operations, 2);
}

}  // namespace
}  // namespace paceline
