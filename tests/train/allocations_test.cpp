// How often a steady step of a wrapped model asks for memory on the training thread, beside the same step without.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "paceline/train/torch_compat.h"
#include "tests/support/counted_allocations.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

using test::allocations;
using test::Samples;
using torch::nn::Sequential;

constexpr int kWarmUp = 10, kSteps = 20;

/// Of a step: in zero_grad(), forward, backward and the optimizer's step.
using Counts = std::array<std::size_t, 4>;

/// Of nearly all steps after the first few. One in which this rank has waited long for another may ask more often: it
/// has looked whether that still lives.
Counts count(Sequential& model, const std::function<void()>& zero_grad, const std::function<void()>& update) {
  const Samples samples(8);
  std::map<Counts, int> seen;
  for (int step = 0; step < kWarmUp + kSteps; ++step) {
    torch::Tensor loss;
    const std::array<std::function<void()>, 4> phases{zero_grad, [&] { loss = test::loss_of(model, samples); },
                                                      [&] { loss.backward(); }, update};
    Counts now{};
    for (std::size_t phase = 0; phase < phases.size(); ++phase) {
      const std::size_t before = allocations;
      phases[phase]();
      now[phase] = allocations - before;
    }
    if (step >= kWarmUp) ++seen[now];
  }
  const auto most =
      std::max_element(seen.begin(), seen.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  EXPECT_GE(most->second, kSteps * 3 / 4);
  EXPECT_EQ(most, seen.begin()) << "no step asks less often";
  return most->first;
}

std::unique_ptr<at::ObserverContext> see_node(const at::RecordFunction&) { return nullptr; }

/// With what hooks like a wrapped model's cost in libtorch itself: it names each node that somebody sees, copies what
/// an accumulator with a hook is given, and keeps the accumulators that somebody holds.
Counts count_unwrapped() {
  Sequential model = test::mlp();
  std::vector<compat::Accumulator> held;
  for (const auto& parameter : model->parameters()) {
    held.push_back(compat::gradient_accumulator(parameter));
    compat::add_post_hook<int>(held.back(), nullptr, [](const torch::Tensor&) {});
  }
  const auto handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&see_node).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto zero_grad = [&] {
    for (auto& group : optimizer.param_groups()) {
      for (auto& parameter : group.params()) parameter.mutable_grad().reset();
    }
  };
  const Counts counts = count(model, zero_grad, [&] { optimizer.step(); });
  at::removeCallback(handle);
  return counts;
}

/// Without the account, which is folded once a step.
Counts count_wrapped(const Comm& comm, const DataParallelOptions& options) {
  Sequential model = test::mlp();
  DistributedDataParallel ddp(*model, comm, options);
  ddp.comm().timeline().set_sink({});
  Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  return count(
      model, [&] { optimizer.zero_grad(); }, [&] { optimizer.step(); });
}

// The two that are left are libtorch's list of what is to be called at the end of backward, and the entry in it.
TEST(Allocations, AWrappedStepMakesTwoMoreThanLibtorch) {
  Counts wanted{};
  test::on_ranks(1, ThreadEngine::SharedMemory, [&](const Comm&) { wanted = count_unwrapped(); });
  EXPECT_GT(wanted[1], 0u) << "libtorch's are counted";
  wanted[2] += 2;
  for (const int n : {1, 2}) {
    for (const std::size_t bucket_bytes : {512u, 1u << 20}) {
      test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
        EXPECT_EQ(count_wrapped(comm, {.bucket_bytes = bucket_bytes}), wanted)
            << n << " ranks, buckets of " << bucket_bytes;
      });
    }
  }
}

}  // namespace
}  // namespace paceline
