// What users combine: shared parameters, gradients of their own, accumulation, weights and frozen parts, together. Each
// as one process over the data of all ranks.
#include <gtest/gtest.h>

#include "paceline/train/sync_batch_norm.h"
#include "tests/train/failures.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

using test::on_ranks;
using torch::nn::Linear;

constexpr std::int64_t kRows = 4;

torch::Tensor rows_of_all(int ranks) {
  return torch::linspace(-2, 1, ranks * kRows * 4, torch::kDouble).view({-1, 4}).sin();
}
torch::Tensor rows_of(const Comm& comm, const torch::Tensor& all) {
  return all.slice(0, comm.rank() * kRows, (comm.rank() + 1) * kRows);
}

/// Two layers, of which others may have one too.
struct Pair : torch::nn::Module {
  Linear first, second;
  Pair(Linear a, Linear b)
      : first(register_module("first", std::move(a))), second(register_module("second", std::move(b))) {}
  torch::Tensor loss(const torch::Tensor& x) { return second(first(x).tanh()).pow(2).mean(); }
};

Linear layer(std::int64_t in, std::int64_t out, std::uint64_t seed) {
  Linear made(in, out);
  made->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  auto generator = torch::make_generator<at::CPUGeneratorImpl>(seed);
  for (auto& p : made->parameters()) p.copy_(torch::randn(p.sizes(), generator, torch::kDouble));
  return made;
}

/// Three models of which each shares a layer with the next.
struct Chain {
  Linear a = layer(4, 4, 1), b = layer(4, 4, 2), c = layer(4, 4, 3), d = layer(4, 4, 4);
  Pair ab{a, b}, bc{b, c}, cd{c, d};
  std::vector<torch::Tensor> parameters() const {
    std::vector<torch::Tensor> all;
    for (const Linear& l : {a, b, c, d}) {
      for (const auto& p : l->parameters()) all.push_back(p);
    }
    return all;
  }
  void clear() const {
    for (auto& p : parameters()) p.mutable_grad().reset();
  }
};

void expect_gradients(const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& wanted,
                      const char* what) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(got[i].grad().defined(), wanted[i].grad().defined()) << what << ", parameter " << i;
    if (!wanted[i].grad().defined()) continue;
    EXPECT_LE((got[i].grad() - wanted[i].grad()).abs().max().item<double>(),
              1e-12 * std::max(1.0, wanted[i].grad().abs().max().item<double>()))
        << what << ", parameter " << i;
  }
}

TEST(Combinations, ThreeModelsOfWhichEachSharesALayerWithTheNext) {
  for (const int ranks : {2, 3}) {
    const auto all = rows_of_all(ranks);
    Chain reference;
    (reference.ab.loss(all) + reference.bc.loss(all) * 2 + reference.cd.loss(all) * 3).backward();
    on_ranks(ranks, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      Chain models;
      DistributedDataParallel ab(models.ab, comm), bc(models.bc, comm), cd(models.cd, comm);
      const auto x = rows_of(comm, all);
      for (int step = 0; step < 3; ++step) {
        models.clear();
        (models.ab.loss(x) + models.bc.loss(x) * 2 + models.cd.loss(x) * 3).backward();
        expect_gradients(models.parameters(), reference.parameters(), "one loss");
        models.clear();
        (models.cd.loss(x) * 3).backward();
        (models.ab.loss(x)).backward();
        (models.bc.loss(x) * 2).backward();
        expect_gradients(models.parameters(), reference.parameters(), "three losses");
      }
    });
  }
}

TEST(Combinations, SharedLayersAccumulated) {
  const auto all = rows_of_all(2);
  Chain reference;
  reference.ab.loss(all).backward();
  reference.bc.loss(all).backward();
  for (const auto& p : reference.parameters()) {
    if (p.grad().defined()) p.mutable_grad().mul_(2);
  }
  on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Chain models;
    DistributedDataParallel ab(models.ab, comm), bc(models.bc, comm);
    const auto x = rows_of(comm, all);
    for (int step = 0; step < 3; ++step) {
      models.clear();
      {
        const auto a = ab.no_sync();
        const auto b = bc.no_sync();
        (models.ab.loss(x) + models.bc.loss(x)).backward();
      }
      (models.ab.loss(x) + models.bc.loss(x)).backward();
      expect_gradients({models.a->weight, models.b->weight, models.c->weight},
                       {reference.a->weight, reference.b->weight, reference.c->weight}, "accumulated");
    }
  });
}

TEST(Combinations, SharedLayersWeighted) {
  const auto all = rows_of_all(2);
  const auto loss = [](Chain& models, const torch::Tensor& x) {
    const auto sum = [&](Pair& pair) { return pair.second(pair.first(x).tanh()).pow(2).sum(); };
    return sum(models.ab) + sum(models.bc);
  };
  Chain reference;
  (loss(reference, all) / static_cast<double>(all.size(0))).backward();
  on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Chain models;
    DistributedDataParallel ab(models.ab, comm, {.reduction = Reduction::Weighted});
    DistributedDataParallel bc(models.bc, comm, {.reduction = Reduction::Weighted});
    const auto x = comm.rank() == 0 ? all.slice(0, 0, 3) : all.slice(0, 3);
    for (int step = 0; step < 3; ++step) {
      models.clear();
      ab.set_weight(static_cast<double>(x.size(0)));
      bc.set_weight(static_cast<double>(x.size(0)));
      loss(models, x).backward();
      expect_gradients(models.parameters(), reference.parameters(), "weighted");
    }
  });
}

TEST(Combinations, ASharedTrunkWithSyncBatchNorm) {
  struct Model : torch::nn::Module {
    torch::nn::Sequential trunk;
    Linear head;
    Model(torch::nn::Sequential t, Linear h)
        : trunk(register_module("trunk", std::move(t))), head(register_module("head", std::move(h))) {}
    torch::Tensor loss(const torch::Tensor& x) { return head(trunk->forward(x)).pow(2).mean(); }
  };
  const auto all = rows_of_all(2);
  torch::nn::Sequential plain(layer(4, 3, 1), torch::nn::BatchNorm1d(3));
  plain->to(torch::kDouble);
  Model actor(plain, layer(3, 2, 2)), critic(plain, layer(3, 1, 3));
  (actor.loss(all) + critic.loss(all)).backward();
  on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    torch::nn::Sequential trunk(layer(4, 3, 1), SyncBatchNorm(3));
    trunk->to(torch::kDouble);
    Model a(trunk, layer(3, 2, 2)), c(trunk, layer(3, 1, 3));
    DistributedDataParallel a_ddp(a, comm);
    auto c_ddp = std::make_unique<DistributedDataParallel>(c, comm);
    const auto x = rows_of(comm, all);
    for (int step = 0; step < 2; ++step) {
      for (const auto& p : a.parameters()) p.mutable_grad().reset();
      for (const auto& p : c.parameters()) p.mutable_grad().reset();
      (a.loss(x) + c.loss(x)).backward();
      expect_gradients(a.parameters(), actor.parameters(), "actor");
      expect_gradients(c.parameters(), critic.parameters(), "critic");
    }
    c_ddp.reset();  // the trunk's batch norm stays that of all ranks
    for (const auto& p : a.parameters()) p.mutable_grad().reset();
    a.loss(x).backward();
    EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors({trunk->buffers()[0], trunk->buffers()[1]})));
  });
}

/// Gradients in memory of the user's own, of every second element of a tensor.
TEST(Combinations, StridedMemoryOfTheUsersOwnWithEveryReductionAndWire) {
  for (const Reduction reduction : {Reduction::Mean, Reduction::Sum, Reduction::Weighted}) {
    for (const Wire wire : {Wire::AsIs, Wire::BFloat16}) {
      on_ranks(3, ThreadEngine::SharedMemory, [&](const Comm& comm) {
        struct Net : torch::nn::Module {
          torch::Tensor w = register_parameter("w", torch::ones({6}));
        } net;
        DistributedDataParallel ddp(net, comm, {.reduction = reduction, .wire = wire});
        const auto memory = torch::zeros({6, 2});
        net.w.mutable_grad() = memory.select(1, 0);
        for (int step = 1; step <= 3; ++step) {
          memory.zero_();
          if (reduction == Reduction::Weighted) ddp.set_weight(2);
          (net.w * (step * (comm.rank() + 1.0))).sum().backward();
          const double sum = step * 6.0;
          const double wanted = reduction == Reduction::Sum ? sum : reduction == Reduction::Mean ? sum / 3 : sum / 6;
          EXPECT_TRUE(memory.select(1, 0).eq(wanted).all().item<bool>())
              << memory[0][0].item<float>() << " instead of " << wanted;
          EXPECT_TRUE(memory.select(1, 1).eq(0).all().item<bool>());
        }
      });
    }
  }
}

TEST(Combinations, StepsThatAreSkippedWithKeptGradientsAndMemoryOfTheUsersOwn) {
  on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    struct Net : torch::nn::Module {
      torch::Tensor w = register_parameter("w", torch::ones({6})), v = register_parameter("v", torch::ones({6}));
    } net;
    DistributedDataParallel ddp(net, comm, {.not_finite = NotFinite::Skip});
    const auto own = torch::zeros({6});
    torch::Tensor kept;
    for (int step = 0; step < 6; ++step) {
      net.v.mutable_grad().reset();
      own.zero_();
      net.w.mutable_grad() = own;
      const bool bad = step % 3 == 1 && comm.rank() == 1;
      (net.w * (comm.rank() + 1.0) + net.v * (bad ? std::nan("") : comm.rank() + 1.0)).sum().backward();
      if (step % 3 == 1) {
        EXPECT_FALSE(net.v.grad().defined());
        EXPECT_FALSE(net.w.grad().defined());
      } else {
        EXPECT_TRUE(own.eq(1.5).all().item<bool>());
        EXPECT_TRUE(net.v.grad().eq(1.5).all().item<bool>());
        if (!kept.defined()) kept = net.v.grad().view({2, 3});
      }
      EXPECT_TRUE(kept.eq(1.5).all().item<bool>());
    }
    EXPECT_EQ(ddp.skipped_rounds(), 2u);
  });
}

// As GANs are often written: the generator is frozen while the discriminator learns.
TEST(Combinations, AGeneratorThatIsFrozenWhileTheDiscriminatorLearns) {
  const auto all = rows_of_all(2);
  const auto train = [](Linear& g, Linear& d, const torch::Tensor& x, const std::function<void()>& check) {
    for (int step = 0; step < 3; ++step) {
      for (const auto& p : g->parameters()) p.requires_grad_(false);
      for (const auto& p : d->parameters()) p.mutable_grad().reset();
      d(g(x)).pow(2).mean().backward();
      for (const auto& p : g->parameters()) p.requires_grad_(true);
      for (const auto& p : g->parameters()) p.mutable_grad().reset();
      d(g(x)).sin().mean().backward();
      check();
    }
  };
  Linear g = layer(4, 4, 1), d = layer(4, 2, 2);
  train(g, d, all, [] {});
  on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Linear own_g = layer(4, 4, 1), own_d = layer(4, 2, 2);
    DistributedDataParallel g_ddp(*own_g, comm), d_ddp(*own_d, comm);
    train(own_g, own_d, rows_of(comm, all), [&] {
      expect_gradients(own_g->parameters(), g->parameters(), "generator");
      expect_gradients(own_d->parameters(), d->parameters(), "discriminator");
    });
  });
}

TEST(Combinations, GradientSurgeryOnTheMeansOfTwoLosses) {
  const auto all = rows_of_all(2);
  const auto surgery = [](Pair& model, const torch::Tensor& x) {
    std::vector<std::vector<torch::Tensor>> of_losses;
    for (int loss = 0; loss < 2; ++loss) {
      for (const auto& p : model.parameters()) p.mutable_grad().reset();
      auto y = model.second(model.first(x).tanh());
      (loss == 0 ? y.pow(2).mean() : y.sin().mean()).backward();
      of_losses.emplace_back();
      for (const auto& p : model.parameters()) of_losses.back().push_back(p.grad());
    }
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
      const auto& a = of_losses[0][i];
      const auto& b = of_losses[1][i];
      const auto along = (a * b).sum() / b.square().sum();
      model.parameters()[i].mutable_grad() = a - along * b + b;
    }
  };
  Pair reference(layer(4, 4, 1), layer(4, 4, 2));
  surgery(reference, all);
  on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Pair model(layer(4, 4, 1), layer(4, 4, 2));
    DistributedDataParallel ddp(model, comm, {.bucket_bytes = 64});
    Optimizer<torch::optim::SGD> optimizer(ddp, model.parameters(), torch::optim::SGDOptions(0.0));
    for (int step = 0; step < 3; ++step) {
      surgery(model, rows_of(comm, all));
      expect_gradients(model.parameters(), reference.parameters(), "surgery");
      optimizer.step();
    }
  });
}

}  // namespace
}  // namespace paceline
