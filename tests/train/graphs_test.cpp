// Kinds of graphs: each as in one process, or refused by name.
#include <gtest/gtest.h>

#include "tests/train/failures.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

using namespace test;
using torch::nn::Sequential;

constexpr std::int64_t kBatch = 6;

TEST(Graphs, AGradientPenaltyBySecondDerivatives) {
  const Samples all(2 * kBatch, torch::kDouble);
  const auto penalised = [](Sequential& model, const Samples& samples) {
    auto x = samples.data.clone().requires_grad_(true);
    const auto out = model->forward(x).sum();
    const auto inner = torch::autograd::grad({out}, {x}, {}, true, true)[0];
    return inner.pow(2).sum(1).mean() + model->forward(samples.data).pow(2).mean();
  };
  Sequential reference = test::mlp();
  reference->to(torch::kDouble);
  penalised(reference, all).backward();
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential model = test::mlp();
    model->to(torch::kDouble);
    if (comm.rank() == 0) test::copy_parameters(*reference, *model);
    DistributedDataParallel ddp(*model, comm);
    penalised(model, all.part(comm.rank() * kBatch, kBatch)).backward();
    for (std::size_t i = 0; i < model->parameters().size(); ++i) {
      if (!reference->parameters()[i].grad().defined()) continue;
      EXPECT_LE((model->parameters()[i].grad() - reference->parameters()[i].grad()).abs().max().item<double>(), 1e-12);
    }
    EXPECT_EQ(ddp.rounds(), 1u) << "the inner derivative is none of ours";
  });
}

TEST(Graphs, BackwardThatKeepsTheGraphOfGradientsIsRefusedByName) {
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Sequential model = test::mlp();
                            DistributedDataParallel ddp(*model, comm);
                            test::loss_of(model, Samples(kBatch)).backward({}, true, true);
                          }),
                 {"INVALID_ARGUMENT", "backward(create_graph=true) reached parameter '4."});
}

TEST(Graphs, RetainedGraphsRunBackwardAgain) {
  const Samples all(2 * kBatch);
  Sequential reference = test::mlp();
  (test::loss_of(reference, all) * 2).backward();
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential model = test::mlp();
    if (comm.rank() == 0) test::copy_parameters(*reference, *model);
    DistributedDataParallel ddp(*model, comm);
    const auto loss = test::loss_of(model, all.part(comm.rank() * kBatch, kBatch));
    loss.backward({}, true);
    loss.backward();
    EXPECT_LE(test::relative_difference(model->parameters()[0].grad(), reference->parameters()[0].grad()), 1e-6);
  });
}

/// Squares, with a backward of its own.
struct Square : torch::autograd::Function<Square> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {2 * context->get_saved_variables()[0] * gradients[0]};
  }
};

TEST(Graphs, CustomFunctions) {
  const Samples all(2 * kBatch);
  Sequential reference = test::mlp();
  reference->forward(all.data).square().mean().backward();
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential model = test::mlp();
    if (comm.rank() == 0) test::copy_parameters(*reference, *model);
    DistributedDataParallel ddp(*model, comm);
    Square::apply(model->forward(all.part(comm.rank() * kBatch, kBatch).data)).mean().backward();
    EXPECT_LE(test::relative_difference(model->parameters()[0].grad(), reference->parameters()[0].grad()), 2e-6);
  });
}

/// Adds up its arguments, and in backward gives the second one nothing where it is told so.
struct AddSometimes : torch::autograd::Function<AddSometimes> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& y, bool nothing) {
    context->saved_data["nothing"] = nothing;
    return x + y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const bool nothing = context->saved_data["nothing"].toBool();
    return {gradients[0], nothing ? torch::Tensor() : gradients[0], torch::Tensor()};
  }
};

struct AddsImpl : torch::nn::Module {
  torch::Tensor x = register_parameter("x", torch::ones({3}));
  torch::Tensor y = register_parameter("y", torch::ones({3}));
};
TORCH_MODULE(Adds);

// As if the backward had not reached the parameter.
TEST(Graphs, ACustomFunctionThatGivesNoGradient) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Adds model;
    DistributedDataParallel ddp(*model, comm);
    Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0));
    for (int step = 0; step < 6; ++step) {
      const int nothing_on = step % 3;  // rank 0, rank 1, all
      optimizer.zero_grad();
      AddSometimes::apply(model->x, model->y, nothing_on == 2 || nothing_on == comm.rank()).sum().backward();
      EXPECT_TRUE(torch::equal(model->x.grad(), torch::ones({3}))) << step;
      ASSERT_EQ(model->y.grad().defined(), nothing_on != 2) << step;
      if (nothing_on != 2) {
        EXPECT_TRUE(torch::equal(model->y.grad(), torch::full({3}, 0.5))) << step;
      }
    }
  });
}

}  // namespace
}  // namespace paceline
