// Gradients that libtorch computes where they are sent from, and what else gets that memory.
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "paceline/train/ddp/backward_watch.h"
#include "paceline/train/ddp/bucket_allocator.h"
#include "paceline/train/torch_compat.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

using test::Samples;
using torch::nn::Sequential;

/// Each parameter has a bucket of its own.
const DataParallelOptions kApart{.bucket_bytes = 64};

torch::Tensor parameter(std::vector<std::int64_t> sizes) {
  return torch::rand(sizes, torch::make_generator<at::CPUGeneratorImpl>(5)).requires_grad_();
}

/// Two parameters of one size.
struct TwoImpl : torch::nn::Module {
  torch::Tensor a = register_parameter("a", parameter({6, 4}));
  torch::Tensor b = register_parameter("b", parameter({4, 6}));
};
TORCH_MODULE(Two);

/// What two ranks must average to whose losses are this one's and twice that.
torch::Tensor mean_of(const torch::Tensor& gradient) { return (gradient + gradient * 2) / 2; }

/// Runs the loss on two ranks, rank 1's doubled, in several steps, and compares each step's gradients with one process.
/// `loss` may keep tensors of the backward in `kept`; so they are compared, too, and must stay as they are in the step
/// after it.
using Loss = std::function<torch::Tensor(Two& model, int step, std::vector<torch::Tensor>& kept)>;
void expect_like_one_process(const Loss& loss) {
  constexpr int kSteps = 5;
  Two plain;
  std::vector<std::vector<torch::Tensor>> wanted;
  std::vector<std::vector<torch::Tensor>> kept_there;
  for (int step = 0; step < kSteps; ++step) {
    for (auto& p : plain->parameters()) p.mutable_grad().reset();
    loss(plain, step, kept_there.emplace_back()).backward();
    auto& of_step = wanted.emplace_back();
    for (auto& p : plain->parameters()) of_step.push_back(p.grad().defined() ? p.grad().clone() : torch::Tensor());
    for (auto& tensor : kept_there.back()) tensor = tensor.clone();
  }
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Two model;
    DistributedDataParallel ddp(*model, comm, kApart);
    Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0));
    std::vector<torch::Tensor> kept, before, before_values;
    for (int step = 0; step < kSteps; ++step) {
      kept.clear();
      (loss(model, step, kept) * (comm.rank() + 1)).backward();
      const auto at = static_cast<std::size_t>(step);
      for (std::size_t i = 0; i < wanted[at].size(); ++i) {
        const torch::Tensor gradient = model->parameters()[i].grad();
        ASSERT_EQ(gradient.defined(), wanted[at][i].defined()) << "parameter " << i << " in step " << step;
        if (gradient.defined()) {
          EXPECT_TRUE(torch::equal(gradient, mean_of(wanted[at][i]))) << "parameter " << i << " in step " << step;
        }
      }
      ASSERT_EQ(kept.size(), kept_there[at].size());
      for (std::size_t i = 0; i < kept.size(); ++i) {
        EXPECT_TRUE(torch::equal(kept[i], kept_there[at][i] * (comm.rank() + 1)))
            << "kept " << i << " in step " << step;
      }
      for (std::size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(torch::equal(before[i], before_values[i])) << "kept " << i << " of the step before " << step;
      }
      before = kept;
      before_values.clear();
      for (const torch::Tensor& tensor : before) before_values.push_back(tensor.clone());
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

TEST(Lending, GradientsAreComputedWhereTheyAreSentFrom) {
  const Samples all(8);
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential model = test::mlp();
    // Sees them before they are looked at.
    std::vector<const void*> computed_at(model->parameters().size());
    std::vector<compat::Accumulator> held;
    for (std::size_t i = 0; i < computed_at.size(); ++i) {
      const torch::Tensor of = model->parameters()[i];
      held.push_back(compat::gradient_accumulator(of));
      compat::add_post_hook<int>(
          held.back(), nullptr, [&computed_at, of, i](const torch::Tensor&) { computed_at[i] = of.grad().data_ptr(); });
    }
    DistributedDataParallel ddp(*model, comm, kApart);
    Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      test::loss_of(model, all.part(std::int64_t{4} * comm.rank(), 4)).backward();
      for (std::size_t i = 0; i < computed_at.size(); i += 2) {  // a bias has the size of other things
        EXPECT_EQ(model->parameters()[i].grad().data_ptr(), computed_at[i]) << "weight " << i << " in step " << step;
      }
      optimizer.step();
    }
  });
}

TEST(Lending, AnIntermediateGradientThatIsKeptKeepsItsMemory) {
  expect_like_one_process([](Two& model, int, std::vector<torch::Tensor>& kept) {
    const auto hidden = model->a.tanh();  // its gradient has the size of a's and comes first
    hidden.register_hook([&kept](const torch::Tensor& gradient) { kept.push_back(gradient); });
    return (hidden.mm(model->b)).square().sum();
  });
}

TEST(Lending, WhatAHookKeepsOfAGradientStaysAsItWas) {
  expect_like_one_process([](Two& model, int, std::vector<torch::Tensor>& kept) {
    const auto a = model->a.view({6, 4}), b = model->b.view({4, 6});
    // What these give on becomes grad() without a copy, in the memory of what is kept.
    a.register_hook([&kept](const torch::Tensor& gradient) { kept.push_back(gradient.detach()); });
    b.register_hook([&kept](const torch::Tensor& gradient) { kept.push_back(gradient.view({-1})); });
    return a.mm(b).square().sum();
  });
}

TEST(Lending, ParametersWhoseGradientsShareMemory) {
  for (const bool first : {true, false}) {
    expect_like_one_process([first](Two& model, int, std::vector<torch::Tensor>&) {
      const auto b = model->b.view({6, 4});
      return (first ? model->a + b : b + model->a).square().sum();
    });
    expect_like_one_process([first](Two& model, int, std::vector<torch::Tensor>&) {
      const auto b = model->b.reshape({6, 4});
      return torch::cat(first ? std::vector{model->a, b} : std::vector{b, model->a}).square().sum();
    });
    expect_like_one_process([first](Two& model, int, std::vector<torch::Tensor>&) {
      const auto a = model->a.t(), b = model->b;
      return (first ? a * b + a : a + b * b).square().sum();
    });
  }
}

TEST(Lending, GradientsTakenInsideAStepKeepTheirValues) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    Two model;
    DistributedDataParallel ddp(*model, comm, kApart);
    Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      const auto loss = [&] { return model->a.mm(model->b).square().sum(); };
      const auto inner = torch::autograd::grad({loss()}, {model->a, model->b});
      const auto values = std::vector{inner[0].clone(), inner[1].clone()};
      (loss() * (comm.rank() + 1)).backward();
      for (std::size_t i = 0; i < inner.size(); ++i) {
        EXPECT_TRUE(torch::equal(inner[i], values[i])) << "parameter " << i << " in step " << step;
        EXPECT_TRUE(torch::equal(model->parameters()[i].grad(), mean_of(values[i]))) << i << " in step " << step;
      }
      optimizer.step();
    }
  });
}

TEST(Lending, ParametersThatTakeNoPartInSomeSteps) {
  expect_like_one_process([](Two& model, int step, std::vector<torch::Tensor>&) {
    const auto other = torch::ones({4, 6}), another = torch::ones({6, 4});
    if (step % 3 == 1) return model->a.mm(other).square().sum();
    if (step % 3 == 2) return another.mm(model->b).square().sum();
    return model->a.mm(model->b).square().sum();
  });
}

TEST(Lending, TheOrderOfParametersChanges) {
  expect_like_one_process([](Two& model, int step, std::vector<torch::Tensor>&) {
    const auto a = model->a.t(), b = model->b;
    return step % 2 == 0 ? (a.tanh() * b).square().sum() : (b.tanh() * a).square().sum();
  });
}

TEST(Lending, WhatWasLentOutlivesTheModel) {
  std::vector<torch::Tensor> kept(2);
  torch::Tensor wanted;
  {
    Two plain;
    const auto hidden = plain->a.tanh();
    hidden.register_hook([&](const torch::Tensor& gradient) { wanted = gradient; });
    hidden.mm(plain->b).square().sum().backward();
  }
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Two model;
    DistributedDataParallel ddp(*model, comm, kApart);
    const auto hidden = model->a.tanh();
    hidden.register_hook(
        [&](const torch::Tensor& gradient) { kept[static_cast<std::size_t>(comm.rank())] = gradient; });
    hidden.mm(model->b).square().sum().backward();
  });
  for (const torch::Tensor& tensor : kept) EXPECT_TRUE(torch::equal(tensor, wanted));
  std::thread([dying = std::move(kept)] {}).join();  // where nothing was ever lent
}

// A node that asks for memory itself, in both ways that libtorch has.
struct Asks : torch::autograd::Function<Asks> {
  static inline std::vector<const void*>* got = nullptr;
  static constexpr std::size_t kBytes = 4096;
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    at::Allocator* const allocator = c10::GetCPUAllocator();
    const at::DataPtr first = allocator->allocate(kBytes);
    void* const second = allocator->raw_allocate(kBytes);
    void* const third = allocator->raw_allocate(kBytes + 1);
    *got = {first.get(), second, third};
    allocator->raw_deallocate(second);
    allocator->raw_deallocate(third);
    return gradients;
  }
};

TEST(Lending, OnlyNodesAreLentMemoryAndItIsGivenBack) {
  Timeline timeline;
  const BackwardWatch watch(timeline, [] {});
  const auto memory = std::make_shared<std::vector<std::byte>>(2 * Asks::kBytes);
  const std::vector<std::shared_ptr<std::byte>> blocks{{memory, memory->data()},
                                                       {memory, memory->data() + Asks::kBytes}};
  std::size_t next = 0;
  std::vector<const void*> got;
  Asks::got = &got;
  const auto x = torch::ones({1}, torch::requires_grad());
  {
    const MemoryLender lender([&](std::size_t bytes) -> std::shared_ptr<std::byte> {
      return bytes == Asks::kBytes && next < blocks.size() ? blocks[next++] : nullptr;
    });
    EXPECT_NE(torch::empty({Asks::kBytes}, torch::kByte).data_ptr(), blocks[0].get()) << "outside of nodes";
    Asks::apply(x).backward();
    EXPECT_EQ(got[0], blocks[0].get());
    EXPECT_EQ(got[1], blocks[1].get());
    EXPECT_NE(got[2], nullptr);
    EXPECT_EQ(memory.use_count(), 3) << "the nodes gave it back";
    next = 0;
  }
  Asks::apply(x).backward();
  EXPECT_EQ(next, 0u) << "a lender that is gone is not asked";
}

}  // namespace
}  // namespace paceline
