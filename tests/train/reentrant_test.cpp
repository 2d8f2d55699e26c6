// Activation checkpointing that runs a backward inside another one, against one process without it.
#include <gtest/gtest.h>

#include <functional>

#include "tests/train/failures.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

using test::expect_all_say;
using test::failures;
using test::Samples;

constexpr std::int64_t kBatch = 6;

using Layer = std::function<torch::Tensor(const torch::Tensor&)>;

/// What PyTorch calls re-entrant checkpointing: keeps the input only, and runs the layer again in backward.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x, const Layer* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer);
    return (*layer)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto* layer = reinterpret_cast<const Layer*>(context->saved_data["layer"].toInt());
    const auto x = context->get_saved_variables()[0].detach().requires_grad_(true);
    const torch::AutoGradMode with_graph(true);
    (*layer)(x).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

enum class Use {
  Plain,
  Twice,          ///< A layer checkpointed twice.
  PlainAndTwice,  ///< And without, so that its gradient comes once before any from inside.
  AllOfIt,        ///< Also the loss, with another one inside: the first gradient comes from there.
};

struct TiedImpl : torch::nn::Module {
  torch::nn::Linear in{12, 8}, shared{8, 8}, out{8, 8};
  Layer layer, end;
  torch::Tensor target;  // of `end`
  bool end_repeats = false;
  TiedImpl() {
    register_module("in", in);
    register_module("shared", shared);
    register_module("out", out);
    // The embedding's weight is tied: it is used in here, in the beginning, and for the logits.
    layer = [this](const torch::Tensor& h) { return torch::tanh(shared(h) + h.matmul(in->weight).mean(1, true)); };
    end = [this](const torch::Tensor& h) {
      const auto logits = torch::tanh(out(end_repeats ? Checkpoint::apply(h, &layer) : h)).matmul(in->weight);
      return torch::nn::functional::cross_entropy(
          logits, target, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
    };
  }
  /// The sum over samples; without checkpoints the same graph.
  torch::Tensor loss(const Samples& samples, Use use, bool checkpoints = true) {
    const auto maybe = [&](const Layer& f, const torch::Tensor& x) {
      return checkpoints && use != Use::Plain ? Checkpoint::apply(x, &f) : f(x);
    };
    target = samples.target;
    end_repeats = checkpoints && use == Use::AllOfIt;
    auto hidden = maybe(layer, maybe(layer, torch::tanh(in(samples.data))));
    if (use == Use::PlainAndTwice) hidden = layer(hidden);
    if (use != Use::AllOfIt) return end(hidden);
    return maybe(end, end_repeats ? hidden : layer(hidden));
  }
  torch::Tensor oracle(const Samples& samples, Use use) { return loss(samples, use, false); }
};
TORCH_MODULE(Tied);

void expect_gradients(const Tied& got, const Tied& wanted, const std::string& where) {
  for (const auto& item : wanted->named_parameters()) {
    EXPECT_LE(test::relative_difference(got->named_parameters()[item.key()].grad(), item.value().grad()), 1e-12)
        << item.key() << where;
  }
}

// Three steps: all gradients wait for the end of the first backward.
void check(int n, Use use, std::size_t bucket_bytes, ThreadEngine engine) {
  Tied reference, start;
  for (auto* model : {&reference, &start}) (*model)->to(torch::kDouble);
  test::copy_parameters(*reference, *start);
  const Samples all(kBatch * n, torch::kDouble);
  torch::optim::SGD oracle(reference->parameters(), torch::optim::SGDOptions(0.1));
  std::vector<Tied> wanted;
  for (int step = 0; step < 3; ++step) {
    oracle.zero_grad();
    (reference->oracle(all, use) / (kBatch * n)).backward();
    Tied copy;
    copy->to(torch::kDouble);
    for (std::size_t i = 0; i < copy->parameters().size(); ++i) {
      copy->parameters()[i].mutable_grad() = reference->parameters()[i].grad().clone();
    }
    wanted.push_back(copy);
    oracle.step();
  }
  test::on_ranks(n, engine, [&](const Comm& comm) {
    Tied model;
    model->to(torch::kDouble);
    if (comm.rank() == 0) test::copy_parameters(*start, *model);
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = bucket_bytes, .check_replicas_every = 1});
    Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad(step == 2);
      (model->loss(all.part(comm.rank() * kBatch, kBatch), use) / kBatch).backward();
      EXPECT_EQ(ddp.rounds(), static_cast<std::uint64_t>(step + 1)) << "one averaging a backward";
      EXPECT_TRUE(ddp.unused().here.empty());
      expect_gradients(model, wanted[static_cast<std::size_t>(step)], " in step " + std::to_string(step));
      EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(test::gradients_of(*model))));
      optimizer.step();
    }
  });
}

TEST(Reentrant, CheckpointsOfALayerTwiceAreOneProcess) {
  for (const int n : {1, 2, 3}) {
    for (const std::size_t bucket_bytes : {64u, 1u << 20})
      check(n, Use::Twice, bucket_bytes, ThreadEngine::SharedMemory);
  }
  check(2, Use::Twice, 64, ThreadEngine::Messages);
}

TEST(Reentrant, APlainUseThatComesFirstIsAddedTo) {
  for (const int n : {1, 2, 3}) {
    for (const std::size_t bucket_bytes : {64u, 1u << 20}) {
      check(n, Use::PlainAndTwice, bucket_bytes, ThreadEngine::SharedMemory);
    }
  }
}

TEST(Reentrant, TheFirstGradientMayComeFromACheckpointInACheckpoint) {
  for (const int n : {1, 2, 3}) check(n, Use::AllOfIt, 64, ThreadEngine::SharedMemory);
}

// Rank 0 begins in its second step, rank 1 in its first.
TEST(Reentrant, RanksAndStepsMayDifferInWhatTheyCheckpoint) {
  const Samples all(2 * kBatch, torch::kDouble);
  Tied reference;
  reference->to(torch::kDouble);
  (reference->oracle(all, Use::Twice) / (2 * kBatch)).backward();
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Tied model;
    model->to(torch::kDouble);
    if (comm.rank() == 0) test::copy_parameters(*reference, *model);
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 64});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad(true);
      const Use use = (step + comm.rank()) % 2 == 0 ? Use::Plain : Use::Twice;
      (model->loss(all.part(comm.rank() * kBatch, kBatch), use) / kBatch).backward();
      expect_gradients(model, reference, " in step " + std::to_string(step));
    }
  });
}

// Two backwards a step, and ranks with different numbers of samples.
TEST(Reentrant, AccumulatedAndWeighted) {
  constexpr int kRanks = 3;
  const auto count = [](int rank, int pass) { return std::int64_t{2} + rank + 3 * pass; };
  const Samples all(2 * (2 + 3 + 4) + 9, torch::kDouble);
  Tied reference;
  reference->to(torch::kDouble);
  (reference->oracle(all, Use::PlainAndTwice) / all.data.size(0)).backward();
  test::on_ranks(kRanks, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Tied model;
    model->to(torch::kDouble);
    if (comm.rank() == 0) test::copy_parameters(*reference, *model);
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 64, .reduction = Reduction::Weighted});
    ddp.accumulate(2);
    for (int step = 0; step < 3; ++step) {
      model->zero_grad(true);
      std::int64_t begin = 0;
      for (int pass = 0; pass < 2; ++pass) {
        for (int rank = 0; rank < kRanks; ++rank) {
          if (rank == comm.rank()) {
            ddp.set_weight(static_cast<double>(count(rank, pass)));
            model->loss(all.part(begin, count(rank, pass)), Use::PlainAndTwice).backward();
          }
          begin += count(rank, pass);
        }
        EXPECT_EQ(ddp.averaged(), pass == 1);
      }
      EXPECT_EQ(begin, all.data.size(0));
      expect_gradients(model, reference, " in step " + std::to_string(step));
    }
  });
}

// Nothing foretold it, and the first gradient is with the other ranks already.
TEST(Reentrant, ACheckpointThatBeginsLaterIsRefusedByNameOnAllRanks) {
  expect_all_say(failures(2,
                          [](const Comm& comm) {
                            Tied model;
                            DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 64});
                            for (const Use use : {Use::Plain, Use::Plain, Use::PlainAndTwice}) {
                              model->loss(Samples(kBatch), use).backward();
                              ddp.comm().barrier();
                            }
                          }),
                 {"INVALID_ARGUMENT", "the gradient of 'shared.bias' arrived again after it was sent off"});
}

/// Throws in backward.
struct Trap : torch::autograd::Function<Trap> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x * 1; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("the user's own error");
  }
};

TEST(Reentrant, ABackwardThatThrowsBeforeItsFirstGradientLeavesNothing) {
  const Samples all(2 * kBatch, torch::kDouble);
  Tied reference;
  reference->to(torch::kDouble);
  (reference->oracle(all, Use::Twice) / (2 * kBatch)).backward();
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Tied model;
    model->to(torch::kDouble);
    if (comm.rank() == 0) test::copy_parameters(*reference, *model);
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 64});
    const Samples own = all.part(comm.rank() * kBatch, kBatch);
    if (comm.rank() == 1) {
      EXPECT_THROW(Trap::apply(model->loss(own, Use::AllOfIt)).backward(), std::runtime_error);
    }
    (model->loss(own, Use::Twice) / kBatch).backward();
    expect_gradients(model, reference, "");
  });
}

}  // namespace
}  // namespace paceline
