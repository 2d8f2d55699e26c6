// Kinds of modules, parameters and graphs: each as in one process, or refused by name.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "paceline/observe/metrics.h"
#include "paceline/train/gather.h"
#include "paceline/train/gradient_norm.h"
#include "paceline/train/seed.h"
#include "paceline/train/sync_batch_norm.h"
#include "train_failures.h"
#include "train_models.h"

namespace paceline {
namespace {

using test::expect_all_say;
using test::failures;
using test::Samples;
using torch::nn::Sequential;

constexpr std::int64_t kBatch = 6;

// ---- Buffers

Sequential with_batch_norm() {
  return Sequential(torch::nn::Linear(12, 7), torch::nn::BatchNorm1d(7), torch::nn::Tanh(), torch::nn::Linear(7, 5));
}

// A6: several forwards before one backward, and integer buffers.
void check_buffers(Buffers how, int n) {
  test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential model = with_batch_norm();
    DistributedDataParallel ddp(*model, comm, {.buffers = how});
    const Samples all(2 * n * kBatch);
    const auto own = [&](int which) { return all.part((2 * comm.rank() + which) * kBatch, kBatch); };
    // What this rank would have without the others.
    torch::nn::BatchNorm1d alone(7);
    torch::NoGradGuard no_grad;
    for (int which = 0; which < 2; ++which) {
      alone->forward(torch::nn::functional::linear(own(which).data, model->parameters()[0], model->parameters()[1]));
    }
    const auto of_ranks = gather(comm, alone->running_var.unsqueeze(0));
    torch::AutoGradMode with_grad(true);
    const auto first = test::loss_of(model, own(0));  // the order counts for running statistics
    (first + test::loss_of(model, own(1))).backward();
    const auto buffers = model->named_buffers();
    EXPECT_EQ(buffers["1.num_batches_tracked"].item<std::int64_t>(), 2);
    torch::Tensor wanted = alone->running_var;
    if (how == Buffers::Broadcast) wanted = of_ranks[0][0];
    if (how == Buffers::Average) wanted = torch::cat(of_ranks).mean(0);
    EXPECT_LE(test::relative_difference(buffers["1.running_var"], wanted), 1e-6);
    EXPECT_EQ(test::same_on_all_ranks(comm, test::hash_of_tensors(model->buffers())), how != Buffers::Own);
  });
}

TEST(A6Buffers, AreEachRanksOwnOrMadeEqualAfterTheBackward) {
  for (const Buffers how : {Buffers::Own, Buffers::Broadcast, Buffers::Average}) check_buffers(how, 3);
}

TEST(A6Buffers, CanBeMadeEqualBeforeAnEvaluation) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    Sequential model = with_batch_norm();
    DistributedDataParallel ddp(*model, comm);
    model->forward(Samples(20).part(comm.rank() * kBatch, kBatch).data);
    EXPECT_FALSE(test::same_on_all_ranks(comm, test::hash_of_tensors(model->buffers())));
    ddp.sync_buffers(Buffers::Average);
    EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(model->buffers())));
  });
}

// ---- Synchronised batch norm

// Against libtorch's own batch norm in one process over the batches of all ranks, of different sizes.
void check_sync_batch_norm(int n, bool images, torch::ScalarType type, std::optional<double> momentum,
                           double tolerance) {
  torch::manual_seed(5);
  const auto network = [&](auto norm) {
    Sequential model;
    if (images) {
      model->push_back(torch::nn::Unflatten(torch::nn::UnflattenOptions(1, {1, 3, 4})));
      model->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 2)));
    } else {
      model->push_back(torch::nn::Linear(12, 4));
    }
    model->push_back(norm);
    model->push_back(torch::nn::Tanh());
    model->push_back(torch::nn::Flatten());
    model->push_back(torch::nn::Linear(images ? 24 : 4, 5));
    return model;
  };
  const torch::optional<double> torch_momentum = momentum ? torch::optional<double>(*momentum) : torch::nullopt;
  Sequential reference =
      images ? network(torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(4).momentum(torch_momentum)))
             : network(torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).momentum(torch_momentum)));
  reference->to(type);
  std::vector<std::int64_t> begins{0};
  for (int rank = 0; rank < n; ++rank) begins.push_back(begins.back() + 3 + 2 * rank);
  const Samples all(begins.back(), type);
  const auto sum_loss = [](Sequential& model, const Samples& samples) {
    return torch::nn::functional::cross_entropy(
        model->forward(samples.data * 2 + 5), samples.target,
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  };
  std::vector<torch::Tensor> start;
  for (const auto& p : reference->parameters()) start.push_back(p.detach().clone());
  torch::optim::SGD optimizer(reference->parameters(), torch::optim::SGDOptions(0.05));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    (sum_loss(reference, all) / static_cast<double>(begins.back())).backward();
    optimizer.step();
  }
  reference->eval();
  const auto evaluated = reference->forward(all.data).detach();
  test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential model = network(SyncBatchNorm(SyncBatchNormOptions{.num_features = 4, .momentum = momentum}));
    model->to(type);
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < start.size(); ++i) model->parameters()[i].copy_(start[i]);
    }
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 64, .reduction = Reduction::Weighted});
    Optimizer<torch::optim::SGD> steps(ddp, model->parameters(), torch::optim::SGDOptions(0.05));
    const auto rank = static_cast<std::size_t>(comm.rank());
    const Samples own = all.part(begins[rank], begins[rank + 1] - begins[rank]);
    for (int step = 0; step < 3; ++step) {
      steps.zero_grad();
      ddp.set_weight(static_cast<double>(own.data.size(0)));
      sum_loss(model, own).backward();
      steps.step();
    }
    for (std::size_t i = 0; i < start.size(); ++i) {
      EXPECT_LE(test::relative_difference(model->parameters()[i].detach(), reference->parameters()[i].detach()),
                tolerance)
          << "parameter " << i;
    }
    const auto wanted = reference->buffers(), got = model->buffers();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_LE(test::relative_difference(got[i].to(torch::kDouble), wanted[i].to(torch::kDouble)), tolerance)
          << "buffer " << i;
    }
    EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(model->buffers())));
    model->eval();
    EXPECT_LE(test::relative_difference(model->forward(all.data), evaluated), tolerance * 10);
  });
}

TEST(SyncBatchNorm, IsOneProcessOverTheWholeBatch) {
  for (const int n : {1, 2, 3}) {
    check_sync_batch_norm(n, false, torch::kDouble, 0.1, 1e-12);
    check_sync_batch_norm(n, true, torch::kDouble, std::nullopt, 1e-12);
    check_sync_batch_norm(n, true, torch::kFloat, 0.3, 2e-5);
  }
}

TEST(SyncBatchNorm, BackwardIsTheDerivative) {
  SyncBatchNorm norm(3);
  norm->to(torch::kDouble);
  auto x = torch::randn({5, 3}, torch::kDouble).requires_grad_(true);
  const auto weights = torch::randn({5, 3}, torch::kDouble);
  const auto loss = [&](const torch::Tensor& input) { return (norm(input).pow(3) * weights).sum(); };
  const auto gradient = torch::autograd::grad({loss(x)}, {x})[0];
  const torch::NoGradGuard no_grad;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    auto up = x.detach().clone(), down = x.detach().clone();
    up.view(-1)[i] += 1e-6, down.view(-1)[i] -= 1e-6;
    EXPECT_NEAR(gradient.view(-1)[i].item<double>(), ((loss(up) - loss(down)) / 2e-6).item<double>(), 1e-6);
  }
}

TEST(SyncBatchNorm, RefusesWhatItCannotNormalize) {
  SyncBatchNorm norm(3);
  EXPECT_THROW(norm(torch::randn({1, 3})), Error);
  EXPECT_THROW(norm(torch::randn({4, 2})), Error);
  EXPECT_THROW(norm(torch::randn({3})), Error);
}

TEST(SyncBatchNorm, WithoutABatchOnSomeRankIsAnErrorThatSaysSo) {
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Sequential model(torch::nn::Linear(12, 4), SyncBatchNorm(4), torch::nn::Linear(4, 5));
                            DistributedDataParallel ddp(*model, comm);
                            for (int step = 0; step < 2 + comm.rank(); ++step) {
                              test::loss_of(model, Samples(16).part(comm.rank() * 4, 4)).backward();
                            }
                            ddp.join();
                          }),
                 {"MISMATCH", "'no more batches'", "'batch norm means'"});
}

// ---- Parameters

struct OneEmbedding : torch::nn::Module {
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear head{4, 3};
  explicit OneEmbedding(bool sparse) : embedding(torch::nn::EmbeddingOptions(11, 4).sparse(sparse)) {
    register_module("embedding", embedding);
    register_module("head", head);
  }
  torch::Tensor loss(const torch::Tensor& tokens) { return torch::tanh(head(embedding(tokens))).pow(2).mean(); }
};

TEST(Sparse, EmbeddingGradientsAreAveragedAlsoWhenAccumulated) {
  const auto tokens = torch::tensor({0, 3, 3, 7, 10, 1, 7, 7}, torch::kInt64);
  for (const int passes : {1, 2}) {
    OneEmbedding reference(false);
    reference.loss(tokens).backward();
    test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      OneEmbedding model(true);
      if (comm.rank() == 0) test::copy_parameters(reference, model);
      DistributedDataParallel ddp(model, comm);
      Optimizer<torch::optim::SGD> optimizer(ddp, model.parameters(), torch::optim::SGDOptions(0.0));
      ddp.accumulate(static_cast<std::size_t>(passes));
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad(step != 2);
        for (int pass = 0; pass < passes; ++pass) {
          const int count = 4 / passes;
          const int begin = comm.rank() * 4 + pass * count;
          (model.loss(tokens.slice(0, begin, begin + count)) / passes).backward();
        }
        EXPECT_LE(test::relative_difference(model.embedding->weight.grad(), reference.embedding->weight.grad()), 1e-6);
        optimizer.step();
      }
      EXPECT_GT(clip_grad_norm(ddp, 1), 0);
    });
  }
  OneEmbedding alone(true);
  DistributedDataParallel ddp(alone, Comm::solo());
  alone.loss(tokens).backward();
  EXPECT_EQ(alone.embedding->weight.grad().layout(), torch::kSparse) << "a world of one leaves it as it is";
  torch::nn::utils::clip_grad_norm_({alone.head->weight, alone.head->bias}, 1e9);
  EXPECT_GT(clip_grad_norm(ddp, 1e9), 0);
}

TEST(Kinds, IntegerAndBoolParametersAndBuffersAreKept) {
  struct Mixed : torch::nn::Module {
    torch::nn::Linear linear{12, 5};
    torch::Tensor counts, flags, table;
    Mixed() {
      register_module("linear", linear);
      counts = register_parameter("counts", torch::arange(5), false);
      flags = register_buffer("flags", torch::ones({3}, torch::kBool));
      table = register_buffer("table", torch::arange(4, torch::kInt32));
    }
  };
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    Mixed model;
    if (comm.rank() == 1) {
      model.counts.fill_(9);
      model.flags.fill_(false);
    }
    DistributedDataParallel ddp(model, comm, {.buffers = Buffers::Average});
    EXPECT_TRUE(model.counts.equal(torch::arange(5)));
    EXPECT_TRUE(model.flags.all().item<bool>());
    if (comm.rank() == 1) model.table.fill_(3);
    model.linear(torch::ones({1, 12})).sum().backward();
    EXPECT_TRUE(model.table.equal(torch::arange(4, torch::kInt32)));
    EXPECT_FALSE(model.counts.grad().defined());
  });
}

TEST(Kinds, HalfAndBFloat16GradientsAreRoundedOnce) {
  for (const auto type : {torch::kFloat16, torch::kBFloat16}) {
    test::on_ranks(3, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      struct Scale : torch::nn::Module {
        torch::Tensor scale;
        explicit Scale(torch::ScalarType t) { scale = register_parameter("scale", torch::ones({33}, t)); }
      } model(type);
      DistributedDataParallel ddp(model, comm);
      const auto of_rank = [&](int rank) { return (torch::arange(33).to(torch::kFloat) / 7 + rank * 0.01f).to(type); };
      (model.scale * of_rank(comm.rank())).sum().backward();
      torch::Tensor sum = torch::zeros({33});
      for (int rank = 0; rank < 3; ++rank) sum += of_rank(rank).to(torch::kFloat);
      EXPECT_TRUE(model.scale.grad().equal((sum * (1.0f / 3)).to(type)));
    });
  }
}

TEST(Kinds, AnyMemoryLayout) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    struct Layouts : torch::nn::Module {
      torch::Tensor transposed, strided;
      Layouts() {
        transposed = register_parameter("transposed", torch::arange(6.0f).view({2, 3}).t());
        strided = register_parameter("strided", torch::arange(8.0f).slice(0, 0, 8, 2));
      }
    } model;
    DistributedDataParallel ddp(model, comm);
    for (int step = 0; step < 3; ++step) {
      if (step == 2) model.zero_grad(false);
      else model.zero_grad(true);
      ((model.transposed * torch::arange(6.0f).view({3, 2})).sum() * (comm.rank() + 1) + model.strided.sum())
          .backward();
      EXPECT_TRUE(model.transposed.grad().equal(torch::arange(6.0f).view({3, 2}) * 1.5f));
      EXPECT_TRUE(model.strided.grad().equal(torch::ones({4})));
    }
  });
}

// ---- Graphs

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

// ---- Other ways to communicate

TEST(Wire, SixteenBitsRoundOnEachRankAndOnce) {
  for (const Wire wire : {Wire::Float16, Wire::BFloat16}) {
    const auto type = wire == Wire::Float16 ? torch::kFloat16 : torch::kBFloat16;
    for (const ThreadEngine engine : {ThreadEngine::SharedMemory, ThreadEngine::Messages}) {
      const Samples all(3 * kBatch);
      Sequential reference = test::mlp();
      std::vector<std::vector<torch::Tensor>> of_ranks;
      for (int rank = 0; rank < 3; ++rank) {
        reference->zero_grad(true);
        test::loss_of(reference, all.part(rank * kBatch, kBatch)).backward();
        of_ranks.emplace_back();
        for (const auto& g : test::gradients_of(*reference)) of_ranks.back().push_back(g.to(type).to(torch::kFloat));
      }
      test::on_ranks(3, engine, [&](const Comm& comm) {
        Sequential model = test::mlp();
        if (comm.rank() == 0) test::copy_parameters(*reference, *model);
        DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 512, .wire = wire});
        for (int step = 0; step < 3; ++step) {
          model->zero_grad(true);
          test::loss_of(model, all.part(comm.rank() * kBatch, kBatch)).backward();
          const auto got = test::gradients_of(*model);
          for (std::size_t i = 0; i < got.size(); ++i) {
            const auto mean = (of_ranks[0][i] + of_ranks[1][i] + of_ranks[2][i]) * (1.0f / 3);
            EXPECT_TRUE(got[i].equal(mean.to(type).to(torch::kFloat))) << "parameter " << i;
          }
          EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(got)));
        }
      });
    }
  }
}

TEST(Wire, WhatAFloat16CannotHoldIsNotFinite) {
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Sequential model = test::mlp();
                            DistributedDataParallel ddp(*model, comm, {.wire = Wire::Float16});
                            auto loss = test::loss_of(model, Samples(kBatch));
                            if (comm.rank() == 1) loss = loss + (model->parameters()[1] * 1e6).sum();
                            loss.backward();
                          }),
                 {"ABORTED", "rank 1's gradient of parameter '0.bias' held NaN or infinity"});
}

TEST(Hooks, AUsersCommunicationOfABucketIsUsed) {
  const Samples all(2 * kBatch);
  Sequential reference = test::mlp();
  test::loss_of(reference, all).backward();
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Sequential model = test::mlp();
    if (comm.rank() == 0) test::copy_parameters(*reference, *model);
    std::vector<std::size_t> called, completed;
    DistributedDataParallel ddp(
        *model, comm, {.bucket_bytes = 512, .reduce_bucket = [&](const GradientBucket& bucket) {
                         called.push_back(bucket.index);
                         return [&, index = bucket.index, values = bucket.values, with = bucket.comm]() mutable {
                           completed.push_back(index);
                           with.all_reduce<float>(std::span(values.data_ptr<float>(), values.numel()), ReduceOp::Mean);
                         };
                       }});
    test::loss_of(model, all.part(comm.rank() * kBatch, kBatch)).backward();
    EXPECT_GT(called.size(), 2u);
    EXPECT_EQ(called, completed);
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_LE(test::relative_difference(model->parameters()[i].grad(), reference->parameters()[i].grad()), 1e-6);
    }
  });
}

TEST(Hooks, BeforeAndAfterAStep) {
  Sequential model = test::mlp();
  DistributedDataParallel ddp(*model, Comm::solo());
  Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
  const auto weight = [&] { return model->parameters()[0].detach().clone(); };
  torch::Tensor before, after;
  optimizer.on_step({.before = [&] { before = weight(); }, .after = [&] { after = weight(); }});
  const auto start = weight();
  test::loss_of(model, Samples(kBatch)).backward();
  optimizer.step();
  EXPECT_TRUE(before.equal(start));
  EXPECT_TRUE(after.equal(weight()));
  EXPECT_FALSE(after.equal(start));
}

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

// ---- Figures

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

TEST(Threads, CannotHaveRandomStreamsOfTheirOwn) {
  expect_all_say(
      failures(2,
               [](const Comm& comm) {
                 seed(comm, 1);
                 Sequential model = test::mlp();
                 DistributedDataParallel ddp(*model, comm);
               }),
      {"INVALID_ARGUMENT", "ranks 0 and 1 are threads of one process, which share libtorch's one CPU generator"});
}

}  // namespace
}  // namespace paceline
