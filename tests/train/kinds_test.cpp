// Kinds of parameters: sparse gradients, types and layouts, each as in one process.
#include <gtest/gtest.h>

#include "paceline/train/gradient_norm.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

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
}

// AdamW takes no sparse gradients, so a program that trains with two workers must not fail with one.
TEST(Sparse, GradientsAreDenseInAWorldOfOneToo) {
  const auto tokens = torch::tensor({0, 3, 3, 7}, torch::kInt64);
  OneEmbedding reference(false), alone(true);
  test::copy_parameters(reference, alone);
  reference.loss(tokens).backward();
  DistributedDataParallel ddp(alone, Comm::solo());
  Optimizer<torch::optim::AdamW> optimizer(ddp, alone.parameters(), torch::optim::AdamWOptions(0.1));
  ddp.accumulate(2);
  (alone.loss(tokens) / 2).backward();
  (alone.loss(tokens) / 2).backward();
  ASSERT_EQ(alone.embedding->weight.grad().layout(), torch::kStrided);
  EXPECT_LE(test::relative_difference(alone.embedding->weight.grad(), reference.embedding->weight.grad()), 1e-6);
  optimizer.step();
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

}  // namespace
}  // namespace paceline
