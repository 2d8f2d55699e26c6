// Random small modules, trained by ranks and by one process over all their samples: the same gradients, definedness and
// parameters. PACELINE_TEST_SEED runs one seed; PACELINE_TEST_SEEDS says how many.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>

#include "tests/train/models.h"

namespace paceline {
namespace {

constexpr int kWidth = 6, kTokens = 9, kLength = 4;

/// What happens in a step: which branches run is drawn anew for each step and rank.
struct Draw {
  std::uint64_t seed;
  int pick(int step, int rank, int what, int choices) const {
    return static_cast<int>(
        hash_of(std::to_string(step) + "," + std::to_string(rank) + "," + std::to_string(what), seed) %
        static_cast<std::uint64_t>(choices));
  }
};

/// A chain of blocks, drawn from the seed: linear, residual, a branch that some steps leave out, a weight used twice,
/// an embedding that is added, a recurrent layer, layer norm, parts that nothing ever uses. In double, so that equality
/// is tight.
class RandomModule final : public torch::nn::Module {
 public:
  explicit RandomModule(std::uint64_t seed) : draw_{seed} {
    std::mt19937_64 random(seed);
    const auto blocks = 1 + random() % 6;
    first_ = register_module("first", torch::nn::Linear(kWidth, kWidth));
    for (std::size_t i = 0; i < blocks; ++i) {
      Block block{.kind = static_cast<Kind>(random() % kKinds)};
      const std::string name = "block" + std::to_string(i);
      switch (block.kind) {
        case Kind::Shared: block.linear = first_; break;
        case Kind::Embedding:
          block.embedding = register_module(
              name, torch::nn::Embedding(torch::nn::EmbeddingOptions(kTokens, kWidth).sparse(random() % 2 == 0)));
          break;
        case Kind::Recurrent:
          block.gru = register_module(name, torch::nn::GRU(torch::nn::GRUOptions(kWidth, kWidth).batch_first(true)));
          break;
        case Kind::Norm:
          block.norm = register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
          break;
        default: block.linear = register_module(name, torch::nn::Linear(kWidth, kWidth));
      }
      if (const auto children = named_children(); random() % 8 == 0 && children.contains(name)) {
        for (auto& parameter : children[name]->parameters()) parameter.set_requires_grad(false);
      }
      blocks_.push_back(std::move(block));
    }
    idle_ = register_module("idle", torch::nn::Linear(2, 2));
    to(torch::kDouble);
  }

  /// The mean over `x` of what this rank's branches make of it.
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& tokens, int step, int rank) {
    auto h = torch::tanh(first_(x));
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      Block& block = blocks_[i];
      const int what = static_cast<int>(i);
      switch (block.kind) {
        case Kind::Linear:
        case Kind::Shared: h = torch::tanh(block.linear(h)); break;
        case Kind::Residual: h = h + torch::relu(block.linear(h)); break;
        case Kind::Branch:
          if (draw_.pick(step, rank, what, 2) == 0) h = h + block.linear(h);
          break;
        case Kind::BranchOfAll:
          if (draw_.pick(step, -1, what, 2) == 0) h = h * torch::sigmoid(block.linear(h));
          break;
        case Kind::Embedding: h = h + block.embedding(tokens).mean(1); break;
        case Kind::Recurrent: h = std::get<0>(block.gru(h.unsqueeze(1).expand({-1, 3, -1}))).select(1, 2); break;
        case Kind::Norm: h = block.norm(h); break;
      }
    }
    return h.pow(2).mean() + (h * x).mean();
  }

 private:
  enum class Kind { Linear, Residual, Branch, BranchOfAll, Shared, Embedding, Recurrent, Norm };
  static constexpr std::uint64_t kKinds = 8;
  struct Block {
    Kind kind;
    torch::nn::Linear linear{nullptr};
    torch::nn::Embedding embedding{nullptr};
    torch::nn::GRU gru{nullptr};
    torch::nn::LayerNorm norm{nullptr};
  };
  Draw draw_;
  torch::nn::Linear first_{nullptr}, idle_{nullptr};
  std::vector<Block> blocks_;
};

struct Plan {
  int ranks, steps, passes;
  std::size_t bucket_bytes;
  int zeroing;  // undefine, zero, none
  explicit Plan(std::uint64_t seed) {
    std::mt19937_64 random(seed ^ 0x5EED);
    ranks = static_cast<int>(1 + random() % 4);
    steps = static_cast<int>(1 + random() % 4);
    passes = static_cast<int>(1 + random() % 3);
    bucket_bytes = std::size_t{64} << random() % 8;
    zeroing = static_cast<int>(random() % 3);
  }
};

void check_seed(std::uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "PACELINE_TEST_SEED=" << seed);
  const Plan plan(seed);
  constexpr int kBatch = 3;
  auto generator = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto x = torch::randn({plan.steps, plan.passes, plan.ranks, kBatch, kWidth}, generator).to(torch::kDouble);
  const auto tokens = torch::randint(0, kTokens, {plan.steps, plan.passes, plan.ranks, kBatch, kLength}, generator);
  const auto loss = [&](RandomModule& model, int step, int pass, int rank) {
    return model.loss(x[step][pass][rank], tokens[step][pass][rank], step * 10 + pass, rank) / plan.passes;
  };
  const auto zero = [&](torch::nn::Module& model) {
    if (plan.zeroing < 2) model.zero_grad(plan.zeroing == 0);
  };
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  torch::manual_seed(seed);
  const auto reference = std::make_shared<RandomModule>(seed);
  std::vector<torch::Tensor> start;
  for (const auto& parameter : reference->parameters()) start.push_back(parameter.detach().clone());
  torch::optim::SGD plain(reference->parameters(), options);
  std::vector<std::vector<torch::Tensor>> gradients(static_cast<std::size_t>(plan.steps));
  for (int step = 0; step < plan.steps; ++step) {
    zero(*reference);
    for (int pass = 0; pass < plan.passes; ++pass) {
      for (int rank = 0; rank < plan.ranks; ++rank) (loss(*reference, step, pass, rank) / plan.ranks).backward();
    }
    for (const auto& parameter : reference->parameters()) {
      const auto& g = parameter.grad();
      gradients[static_cast<std::size_t>(step)].push_back(g.defined() ? g.to_dense().clone() : torch::Tensor());
    }
    plain.step();
  }
  test::on_ranks(plan.ranks, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    const auto model = std::make_shared<RandomModule>(seed);
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < start.size(); ++i) model->parameters()[i].copy_(start[i]);
    }
    DistributedDataParallel ddp(*model, comm, {.bucket_bytes = plan.bucket_bytes, .check_replicas_every = 1});
    Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), options);
    ddp.accumulate(static_cast<std::size_t>(plan.passes));
    for (int step = 0; step < plan.steps; ++step) {
      zero(*model);
      for (int pass = 0; pass < plan.passes; ++pass) loss(*model, step, pass, comm.rank()).backward();
      const auto parameters = model->parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& wanted = gradients[static_cast<std::size_t>(step)][i];
        const auto& got = parameters[i].grad();
        ASSERT_EQ(got.defined(), wanted.defined()) << "parameter " << i << " of step " << step;
        if (!wanted.defined()) continue;
        ASSERT_LE((got.to_dense() - wanted).abs().max().item<double>(), 1e-12)
            << "parameter " << i << " of step " << step;
      }
      optimizer.step();
    }
    const auto wanted = reference->parameters(), got = model->parameters();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_LE((got[i] - wanted[i]).abs().max().item<double>(), 1e-12) << "parameter " << i;
    }
    ASSERT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(got)));
  });
}

TEST(RandomModules, AreTrainedAsByOneProcess) {
  if (std::getenv("PACELINE_TEST_SEED") != nullptr) return check_seed(test::seed());
  const char* count = std::getenv("PACELINE_TEST_SEEDS");
  const std::uint64_t seeds = count == nullptr ? 200 : std::stoull(count);
  for (std::uint64_t seed = 0; seed < seeds && !testing::Test::HasFailure(); ++seed) check_seed(seed);
}

}  // namespace
}  // namespace paceline
