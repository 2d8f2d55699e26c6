// What libtorch users do around backward(), against what one process does; and what must be refused.
#include <gtest/gtest.h>

#include "tests/train/failures.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

using namespace test;
using torch::nn::Sequential;

constexpr std::int64_t kBatch = 8;

/// Two heads, of which a step uses one, both, or none but the trunk.
struct TwoHeadsImpl : torch::nn::Module {
  torch::nn::Linear trunk{12, 9}, first{9, 5}, second{9, 5}, never{9, 5};
  TwoHeadsImpl() {
    register_module("trunk", trunk);
    register_module("first", first);
    register_module("second", second);
    register_module("never", never);
  }
  torch::Tensor loss(const Samples& samples, bool use_first, bool use_second) {
    const auto hidden = torch::tanh(trunk(samples.data));
    auto loss = hidden.pow(2).mean();
    if (use_first) loss = loss + torch::nn::functional::cross_entropy(first(hidden), samples.target);
    if (use_second) loss = loss + torch::nn::functional::cross_entropy(second(hidden), samples.target);
    return loss;
  }
};
TORCH_MODULE(TwoHeads);

enum class Zeroing { Undefine, Zero, Libtorch, None };

// Which heads rank `rank` uses in step `step`: on all ranks, on some, on none, changing.
bool uses(int head, int rank, int step) { return ((step >> head) + rank * (head + step % 2)) % 2 == 0; }

void check_unused(int n, Zeroing zeroing) {
  TwoHeads reference, start;
  test::copy_parameters(*reference, *start);
  const Samples all(kBatch * n);
  constexpr int kSteps = 8;
  std::vector<std::vector<torch::Tensor>> wanted;  // by step
  for (int step = 0; step < kSteps; ++step) {
    if (step > 0 && zeroing == Zeroing::Undefine) reference->zero_grad(true);
    if (step > 0 && (zeroing == Zeroing::Zero || zeroing == Zeroing::Libtorch)) reference->zero_grad(false);
    torch::Tensor loss = torch::zeros({});
    for (int rank = 0; rank < n; ++rank) {
      loss = loss + reference->loss(all.part(rank * kBatch, kBatch), uses(0, rank, step), uses(1, rank, step)) / n;
    }
    loss.backward();
    std::vector<torch::Tensor> gradients;
    for (const auto& p : reference->parameters()) gradients.push_back(p.grad().defined() ? p.grad().clone() : p.grad());
    wanted.push_back(gradients);
  }
  test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    TwoHeads replica;
    if (comm.rank() == 0) test::copy_parameters(*start, *replica);
    DistributedDataParallel ddp(*replica, comm, {.bucket_bytes = 256});
    Optimizer<torch::optim::SGD> optimizer(ddp, replica->parameters(), torch::optim::SGDOptions(0.0));
    for (int step = 0; step < kSteps; ++step) {
      if (step > 0) {
        if (zeroing == Zeroing::Undefine) optimizer.zero_grad();
        if (zeroing == Zeroing::Zero) optimizer.zero_grad(false);
        if (zeroing == Zeroing::Libtorch) static_cast<torch::optim::Optimizer&>(optimizer).zero_grad();
      }
      replica->loss(all.part(comm.rank() * kBatch, kBatch), uses(0, comm.rank(), step), uses(1, comm.rank(), step))
          .backward();
      optimizer.step();
      const auto parameters = replica->parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& expected = wanted[step][i];
        const auto& actual = parameters[i].grad();
        ASSERT_EQ(actual.defined(), expected.defined()) << "step " << step << " parameter " << i;
        if (!expected.defined()) continue;
        ASSERT_TRUE(torch::allclose(actual, expected, 1e-5, 1e-6)) << "step " << step << " parameter " << i;
      }
      std::vector<torch::Tensor> gradients;
      for (const auto& p : parameters) {
        if (p.grad().defined()) gradients.push_back(p.grad());
      }
      ASSERT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(gradients))) << "step " << step;
    }
  });
}

TEST(Unused, AreNamedInTheSameStep) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    TwoHeads model;
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 256});
    const Samples samples(kBatch);
    using Names = std::vector<std::string>;
    model->loss(samples, true, comm.rank() == 1).backward();
    const Names never{"never.weight", "never.bias"}, also{"second.weight", "second.bias", "never.weight", "never.bias"};
    EXPECT_EQ(ddp.unused().here, comm.rank() == 1 ? never : also);
    EXPECT_EQ(ddp.unused().everywhere, never);
    model->loss(samples, true, true).backward();
    EXPECT_EQ(ddp.unused().here, never);
  });
}

TEST(Unused, ParametersGetTheGradientOfOneProcessUndefining) {
  check_unused(2, Zeroing::Undefine), check_unused(3, Zeroing::Undefine);
}
TEST(Unused, ParametersGetTheGradientOfOneProcessZeroing) {
  check_unused(2, Zeroing::Zero), check_unused(3, Zeroing::Zero);
}
TEST(Unused, ParametersGetTheGradientOfOneProcessByLibtorch) {
#if TORCH_VERSION_MAJOR < 2  // from 2.0 on its zero_grad() undefines
  check_unused(3, Zeroing::Libtorch);
#else
  check_unused(3, Zeroing::Undefine);
#endif
}
TEST(Unused, ParametersGetTheGradientOfOneProcessAccumulating) {
  check_unused(2, Zeroing::None), check_unused(3, Zeroing::None);
}

TEST(Refused, AStepAfterTheModuleWasCast) {
  expect_all_say(
      failures(2,
               [](const Comm& comm) {
                 Sequential model = test::mlp();
                 DistributedDataParallel ddp(*model, comm);
                 model->to(torch::kDouble);
                 Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
                 test::loss_of(model, Samples(kBatch, torch::kDouble)).backward();
                 optimizer.step();
               }),
      {"ABORTED", "'0.weight' was cast, moved, loaded (torch::load), frozen or unfrozen after its module was wrapped"});
}

TEST(Refused, ABackwardAfterPartOfTheModuleWasCast) {
  struct HalfCast : torch::nn::Module {
    torch::nn::Linear in{12, 6}, out{6, 5};
    HalfCast() { register_module("in", in), register_module("out", out); }
  };
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            HalfCast model;
                            DistributedDataParallel ddp(model, comm);
                            model.out->to(torch::kDouble);
                            model.out(model.in(torch::randn({2, 12})).to(torch::kDouble)).sum().backward();
                          }),
                 {"ABORTED", "'out.weight' was cast"});
}

TEST(Refused, AStepWithoutABackward) {
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Sequential model = test::mlp();
                            DistributedDataParallel ddp(*model, comm);
                            Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(),
                                                                   torch::optim::SGDOptions(0.1));
                            test::loss_of(model, Samples(kBatch)).backward();
                            optimizer.step();
                            optimizer.step();
                          }),
                 {"ABORTED", "never averaged"});
}

/// Throws in backward where asked to.
struct Trap : torch::autograd::Function<Trap> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x, bool armed) {
    context->saved_data["armed"] = armed;
    return x * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (context->saved_data["armed"].toBool()) throw std::runtime_error("the user's own error");
    return {gradients[0], torch::Tensor()};
  }
};

TEST(Refused, AStepAfterABackwardThatThrewHalfWay) {
  const auto messages = failures(2, [](const Comm& comm) {
    torch::nn::Linear in(12, 6), out(6, 5);
    Sequential model(in, out);
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 64});
    Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
    const auto backward = [&](bool armed) { out(Trap::apply(in(torch::randn({2, 12})), armed)).sum().backward(); };
    backward(false);
    optimizer.step();
    if (comm.rank() == 1) EXPECT_THROW(backward(true), std::runtime_error);
    else backward(false);
    optimizer.step();
  });
  expect_all_say(messages, {"ABORTED", "rank 1's backward() ended before its gradients were averaged"});
}

TEST(Refused, AnExceptionOnOneRankReachesTheOthers) {
  const auto messages = failures(3, [](const Comm& comm) {
    Sequential model = test::mlp();
    DistributedDataParallel ddp(*model, comm);
    if (comm.rank() == 2) throw std::runtime_error("disk on fire");
    test::loss_of(model, Samples(kBatch)).backward();
  });
  EXPECT_EQ(messages[2], "disk on fire");
  expect_all_say({messages[0], messages[1]}, {"ABORTED", "rank 2 gave up: disk on fire"});
}

// By a program that tells the others why it ends once its wrapper is gone, as docs/errors.md has it.
TEST(Refused, AnExceptionInsideBackwardIsToldByWhoeverCatchesIt) {
  const auto messages = failures(2, [](const Comm& comm) {
    try {
      Sequential model = test::mlp();
      DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 64});
      for (int step = 0; step < 3; ++step) {
        auto loss = test::loss_of(model, Samples(kBatch));
        if (step == 1 && comm.rank() == 1) {
          model->parameters()[0].register_hook(
              [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("the disk is on fire"); });
        }
        loss.backward();
      }
    } catch (const std::exception& error) {
      comm.abort(error.what());
      throw;
    }
  });
  EXPECT_NE(messages[0].find("rank 1 gave up: the disk is on fire"), std::string::npos) << messages[0];
  EXPECT_NE(messages[1].find("the disk is on fire"), std::string::npos) << messages[1];
}

TEST(Refused, ModelsThatDiffer) {
  expect_all_say(failures(3,
                          [](const Comm& comm) {
                            Sequential model(torch::nn::Linear(12, 6), torch::nn::Linear(6, comm.rank() == 2 ? 7 : 5));
                            DistributedDataParallel ddp(*model, comm, {.name = "net"});
                          }),
                 {"E302 MISMATCH", "model 'net' differs", "rank 0 (signature", "'1.weight' Float [5, 6]",
                  "rank 2 (signature", "'1.weight' Float [7, 6]"});
}

TEST(Refused, RanksOfWhichOneHasMoreParameters) {
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Sequential model(torch::nn::Linear(3, 3));
                            if (comm.rank() == 1) model->push_back(torch::nn::Linear(3, 3));
                            DistributedDataParallel ddp(*model, comm);
                          }),
                 {"MISMATCH", "nothing more", "'1.weight' Float [3, 3]"});
}

TEST(Refused, OptionsThatAreNoneOfTheirValues) {
  const auto refused = [](DataParallelOptions options) {
    torch::nn::Linear model(2, 1);
    try {
      const DistributedDataParallel ddp(*model, Comm::solo(), std::move(options));
    } catch (const Error& error) {
      return error.code() == ErrorCode::InvalidArgument && error.message().find("is 77") != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused({.reduction = static_cast<Reduction>(77)}));
  EXPECT_TRUE(refused({.uneven = static_cast<Uneven>(77)}));
  EXPECT_TRUE(refused({.ended_ranks = static_cast<EndedRanks>(77)}));
  EXPECT_TRUE(refused({.not_finite = static_cast<NotFinite>(77)}));
  EXPECT_TRUE(refused({.buffers = static_cast<Buffers>(77)}));
  EXPECT_TRUE(refused({.wire = static_cast<Wire>(77)}));
}

TEST(Refused, AFrozenModuleAndIntegerGradients) {
  Sequential frozen = test::mlp();
  for (auto& p : frozen->parameters()) p.requires_grad_(false);
  EXPECT_THROW(DistributedDataParallel(*frozen, Comm::solo()), Error);
  struct Complex : torch::nn::Module {
    Complex() { register_parameter("z", torch::zeros({2}, torch::kComplexFloat)); }
  } complex;
  try {
    DistributedDataParallel ddp(complex, Comm::solo());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_NE(error.message().find("'z'"), std::string::npos);
  }
}

TEST(Wrapping, SendsParametersAndBuffersOfRankZero) {
  test::on_ranks(3, ThreadEngine::SharedMemory, [](const Comm& comm) {
    Sequential model(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4));
    {
      const torch::NoGradGuard no_grad;
      for (auto& p : model->parameters()) p.fill_(comm.rank() + 1);
      for (auto& b : model->buffers()) b.fill_(comm.rank() + 1);
      model->parameters()[0].set_data(model->parameters()[0].contiguous(torch::MemoryFormat::ChannelsLast));
    }
    DistributedDataParallel ddp(*model, comm);
    for (const auto& p : model->parameters()) EXPECT_TRUE(p.eq(1).all().item<bool>());
    for (const auto& b : model->buffers()) EXPECT_TRUE(b.eq(1).all().item<bool>());
    EXPECT_EQ(ddp.parameter_count(), 3u * 4 * 9 + 4 + 4 + 4);
    model->forward(torch::randn({2, 3, 5, 5})).pow(2).sum().backward();
    for (const auto& p : model->parameters()) EXPECT_EQ(p.grad().strides(), p.strides());
  });
}

// One tensor under two names is one parameter, and its gradient the sum of both uses.
TEST(Wrapping, SharedParametersAreReducedOnce) {
  struct Tied : torch::nn::Module {
    torch::nn::Linear a{6, 6}, b{6, 6};
    Tied() {
      b->weight = a->weight;
      register_module("a", a);
      auto module = register_module("b", b);
      module->register_parameter("tied", a->weight);
    }
    torch::Tensor loss(const torch::Tensor& x) { return b(torch::tanh(a(x))).pow(2).mean(); }
  };
  Tied reference;
  const auto x = torch::randn({4, 6});
  reference.loss(x).backward();
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Tied replica;
    test::copy_parameters(reference, replica);
    DistributedDataParallel ddp(replica, comm);
    replica.loss(x.slice(0, comm.rank() * 2, comm.rank() * 2 + 2)).backward();
    EXPECT_LE(test::relative_difference(replica.a->weight.grad(), reference.a->weight.grad()), 1e-6);
  });
}

TEST(Wrapping, TwoForwardsBeforeOneBackwardAndCallsPastTheWrapper) {
  Sequential reference = test::mlp();
  const Samples all(2 * kBatch);
  (test::loss_of(reference, all) + reference->forward(all.data).pow(2).mean()).backward();
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential replica = test::mlp();
    if (comm.rank() == 0) test::copy_parameters(*reference, *replica);
    DistributedDataParallel ddp(*replica, comm);
    const Samples own = all.part(comm.rank() * kBatch, kBatch);
    (test::loss_of(replica, own) + replica->forward(own.data).pow(2).mean()).backward();
    EXPECT_LE(test::relative_difference(replica->parameters()[0].grad(), reference->parameters()[0].grad()), 2e-6);
  });
}

// Rank 0's part of a graph in which two models interleave leaves one of them out.
TEST(Wrapping, ModelsWhoseBackwardsInterleaveDoNotMix) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    const auto layers = [] {
      return std::vector{torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)),
                         torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false))};
    };
    auto a = layers(), b = layers();
    Sequential model_a(a[0], a[1]), model_b(b[0], b[1]);
    DistributedDataParallel ddp_a(*model_a, comm), ddp_b(*model_b, comm);
    for (auto& parameter : model_a->parameters()) torch::nn::init::ones_(parameter);
    for (auto& parameter : model_b->parameters()) torch::nn::init::ones_(parameter);
    const auto one = torch::ones({1, 1});
    for (int step = 0; step < 3; ++step) {
      model_a->zero_grad(true);
      model_b->zero_grad(true);
      // A and B alternate; rank 0 does not use a[0].
      const auto inner = comm.rank() == 0 ? b[0](one) : a[0](b[0](one));
      (100 * a[1](b[1](inner))).sum().backward();
      EXPECT_EQ(a[0]->weight.grad().item<float>(), 50);
      EXPECT_EQ(a[1]->weight.grad().item<float>(), 100);
      EXPECT_EQ(b[0]->weight.grad().item<float>(), 100);
      EXPECT_EQ(b[1]->weight.grad().item<float>(), 100);
    }
  });
}

// Before the first step, in which slots move.
TEST(Unused, AGradientThatNoRankComputedKeepsItsBits) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    torch::nn::Linear used(3, 3), idle(3, 3), first(3, 3);
    Sequential model(first, idle, used);
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 64});
    for (int step = 0; step < 3; ++step) {
      idle->weight.mutable_grad() = torch::full({3, 3}, comm.rank() + 1.0f);
      used(first(torch::ones({1, 3}))).sum().backward();
      EXPECT_TRUE(idle->weight.grad().eq(comm.rank() + 1).all().item<bool>()) << "step " << step;
    }
  });
}

TEST(Refused, AParameterThatWasFrozenWhenItWasWrapped) {
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Sequential model = test::mlp();
                            model->parameters()[0].requires_grad_(false);
                            DistributedDataParallel ddp(*model, comm);
                            model->parameters()[0].requires_grad_(true);
                            test::loss_of(model, Samples(kBatch)).backward();
                          }),
                 {"ABORTED", "'0.weight' was cast, moved, loaded (torch::load), frozen or unfrozen"});
}

TEST(Refused, AnOptimizerOfOtherParameters) {
  Sequential model = test::mlp(), other = test::mlp();
  DistributedDataParallel ddp(*model, Comm::solo());
  EXPECT_THROW(Optimizer<torch::optim::SGD>(ddp, other->parameters(), torch::optim::SGDOptions(0.1)), Error);
}

TEST(Refused, LayoutsThatDiffer) {
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            torch::nn::Conv2d conv(2, 1, 2);
                            if (comm.rank() == 1) {
                              conv->weight.set_data(conv->weight.contiguous(torch::MemoryFormat::ChannelsLast));
                            }
                            DistributedDataParallel ddp(*conv, comm);
                          }),
                 {"MISMATCH", "strides"});
}

TEST(SameBatch, IsFoundInTheFirstStep) {
  const auto finding_ids = [](bool same) {
    std::vector<std::string> ids;
    test::on_ranks(3, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      Sequential model = test::mlp();
      DistributedDataParallel ddp(*model, comm);
      const Samples all(3 * kBatch);
      test::loss_of(model, all.part((same ? comm.rank() / 2 : comm.rank()) * kBatch, kBatch)).backward();
      if (comm.rank() != 0) return;
      for (const Finding& finding : ddp.recorder().summary().findings) ids.push_back(finding.evidence);
    });
    return ids;
  };
  EXPECT_TRUE(finding_ids(false).empty());
  ASSERT_EQ(finding_ids(true).size(), 1u);
  EXPECT_NE(finding_ids(true)[0].find("ranks 0 and 1"), std::string::npos);
}

}  // namespace
}  // namespace paceline
