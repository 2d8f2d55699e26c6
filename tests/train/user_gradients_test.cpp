// What users do with gradients, and what libtorch leaves there: kept ones, memory of their own, tensors whose bytes are
// not their values. Each as in one process.
#include <gtest/gtest.h>

#include "paceline/train/checkpoint.h"
#include "paceline/train/gather.h"
#include "paceline/train/gradient_norm.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/failures.h"
#include "tests/train/models.h"

namespace paceline {
namespace {

using test::on_ranks;

/// y = sum(w * x), so that the gradient of w is x; large enough for a bucket of its own where `count` says so.
struct Dot : torch::nn::Module {
  torch::Tensor w, v;
  explicit Dot(std::int64_t count)
      : w(register_parameter("w", torch::ones({count}, torch::kDouble))),
        v(register_parameter("v", torch::ones({3}, torch::kDouble))) {}
  torch::Tensor forward(double x) { return (w * x).sum() + (v * (2 * x)).sum(); }
  void clear() {
    for (auto& p : parameters()) p.mutable_grad().reset();
  }
};

double mean_of_ranks(const Comm& comm) { return (comm.world_size() + 1) / 2.0; }

void expect_all(const torch::Tensor& tensor, double value) {
  EXPECT_TRUE(tensor.eq(value).all().item<bool>()) << tensor.flatten()[0].item<double>() << " instead of " << value;
}

class KeptGradients : public testing::TestWithParam<int> {};

TEST_P(KeptGradients, StayWhatTheyWere) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      Dot model(GetParam());
      DistributedDataParallel ddp(model, comm, {.bucket_bytes = 4096});
      std::vector<torch::Tensor> kept, views, detached, others;
      for (int step = 1; step <= 4; ++step) {
        model.clear();
        model.forward(step * (comm.rank() + 1.0)).backward();
        kept.push_back(model.w.grad());
        views.push_back(model.v.grad().slice(0, 1));
        detached.push_back(model.w.grad().detach());
        for (int earlier = 1; earlier <= step; ++earlier) {
          const auto at = static_cast<std::size_t>(earlier - 1);
          expect_all(kept[at], earlier * mean_of_ranks(comm));
          expect_all(views[at], 2 * earlier * mean_of_ranks(comm));
          expect_all(detached[at], earlier * mean_of_ranks(comm));
        }
      }
    });
  }
}

TEST_P(KeptGradients, StayWhatTheyWereWhereABackwardDoesNotReachTheParameter) {
  on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Dot model(GetParam());
    DistributedDataParallel ddp(model, comm, {.bucket_bytes = 4096});
    model.forward(comm.rank() + 1.0).backward();
    const auto kept = model.w.grad();
    model.clear();
    (comm.rank() == 0 ? model.v.sum() : (model.w * 4).sum() + model.v.sum()).backward();
    expect_all(kept, 1.5);
    expect_all(model.w.grad(), 2);
    model.clear();
    model.v.sum().backward();  // on no rank
    expect_all(kept, 1.5);
    EXPECT_FALSE(model.w.grad().defined());
  });
}

// Until zero_grad() it is grad() itself, and changes as in one process.
TEST_P(KeptGradients, FollowGradWhileTheyAreGrad) {
  on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Dot model(GetParam());
    DistributedDataParallel ddp(model, comm, {.bucket_bytes = 4096});
    model.forward(comm.rank() + 1.0).backward();
    const auto kept = model.w.grad();
    model.forward(comm.rank() + 1.0).backward();
    expect_all(model.w.grad(), 3);
    expect_all(kept, 3);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, KeptGradients, testing::Values(5, 4099));

class OwnMemory : public testing::TestWithParam<int> {};

// All gradients as views of one flat tensor, as a fused optimizer or a clipping of its own would want them.
TEST_P(OwnMemory, OfTheUserGetsTheMeanInPlace) {
  for (const int ranks : {1, 2, 3}) {
    for (const std::size_t backwards : {1u, 3u}) {
      on_ranks(ranks, ThreadEngine::SharedMemory, [&](const Comm& comm) {
        Dot model(GetParam());
        DistributedDataParallel ddp(model, comm, {.bucket_bytes = 4096});
        ddp.accumulate(backwards);
        const auto flat = torch::zeros({GetParam() + 3}, torch::kDouble);
        model.w.mutable_grad() = flat.slice(0, 0, GetParam());
        model.v.mutable_grad() = flat.slice(0, GetParam());
        for (int step = 1; step <= 4; ++step) {
          flat.zero_();
          for (std::size_t pass = 0; pass < backwards; ++pass) model.forward(step * (comm.rank() + 1.0)).backward();
          const double mean = step * static_cast<double>(backwards) * mean_of_ranks(comm);
          expect_all(flat.slice(0, 0, GetParam()), mean);
          expect_all(flat.slice(0, GetParam()), 2 * mean);
          EXPECT_TRUE(model.w.grad().is_alias_of(flat));
        }
      });
    }
  }
}

TEST_P(OwnMemory, OfAParameterThatOnlyOtherRanksReach) {
  on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Dot model(GetParam());
    DistributedDataParallel ddp(model, comm, {.bucket_bytes = 4096});
    const auto own = torch::zeros({GetParam()}, torch::kDouble);
    model.w.mutable_grad() = own;
    (comm.rank() == 0 ? model.v.sum() : (model.w * 4).sum() + model.v.sum()).backward();
    expect_all(own, 2);
    own.fill_(7);
    model.v.mutable_grad().reset();
    model.v.sum().backward();  // on no rank
    expect_all(own, 7);
  });
}

/// A program that sets its gradients to views of a flat tensor once, and from then on clears only that.
struct FlatGradients {
  Dot model;
  DistributedDataParallel ddp;
  Optimizer<torch::optim::SGD> optimizer{ddp, model.parameters(), torch::optim::SGDOptions(0.0)};
  torch::Tensor flat;
  FlatGradients(const Comm& comm, std::int64_t count, NotFinite not_finite = NotFinite::Raise)
      : model(count),
        ddp(model, comm, {.bucket_bytes = 4096, .not_finite = not_finite}),
        flat(torch::zeros({count + 3}, torch::kDouble)) {
    model.w.mutable_grad() = flat.slice(0, 0, count);
    model.v.mutable_grad() = flat.slice(0, count);
  }
  void backward(double x) {
    flat.zero_();
    model.forward(x).backward();
  }
};

TEST_P(OwnMemory, ComesBackAfterAStepThatWasSkipped) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      FlatGradients job(comm, GetParam(), NotFinite::Skip);
      for (int step = 1; step <= 6; ++step) {
        job.backward(step == 3 && comm.rank() == 0 ? std::nan("") : step * (comm.rank() + 1.0));
        if (step == 3) {
          EXPECT_FALSE(job.model.w.grad().defined()) << "the optimizer finds nothing";
        } else {
          expect_all(job.model.w.grad(), step * mean_of_ranks(comm));
          expect_all(job.flat.slice(0, 0, GetParam()), step * mean_of_ranks(comm));
        }
        job.optimizer.step();
      }
    });
  }
}

TEST_P(OwnMemory, ComesBackAfterACheckpointWasLoaded) {
  for (const int ranks : {1, 2}) {
    const TemporaryFolder folder;
    on_ranks(ranks, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      FlatGradients job(comm, GetParam());
      JobState state;
      job.backward(comm.rank() + 1.0);
      job.optimizer.step();
      save(folder.path, job.ddp, state);
      ASSERT_TRUE(load(folder.path, job.ddp, state));
      for (int step = 1; step <= 3; ++step) {
        job.backward(step * (comm.rank() + 1.0));
        expect_all(job.flat.slice(0, 0, GetParam()), step * mean_of_ranks(comm));
        expect_all(job.model.w.grad(), step * mean_of_ranks(comm));
        job.optimizer.step();
      }
    });
  }
}

// What a program put there after the backward, and keeps, is no such memory.
TEST_P(OwnMemory, ThatCameAfterTheBackwardIsLeftAloneByALoad) {
  const TemporaryFolder folder;
  on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    Dot model(GetParam());
    DistributedDataParallel ddp(model, comm, {.bucket_bytes = 4096});
    JobState state;
    model.forward(1).backward();
    const auto mixed = model.w.grad() * 5;
    model.w.mutable_grad() = mixed;
    save(folder.path, ddp, state);
    ASSERT_TRUE(load(folder.path, ddp, state));
    model.forward(2).backward();
    expect_all(mixed, 5);
    expect_all(model.w.grad(), 2);
  });
}

TEST(Refused, MemoryOfTheUsersOwnThatWasNotZeroedWhereItWouldCountAgain) {
  test::expect_all_say(test::failures(2,
                                      [](const Comm& comm) {
                                        Dot model(5);
                                        DistributedDataParallel ddp(model, comm, {.reduction = Reduction::Sum});
                                        const auto own = torch::zeros({5}, torch::kDouble);
                                        model.w.mutable_grad() = own;
                                        for (int step = 0; step < 3; ++step) {
                                          if (step == 1) own.zero_();
                                          model.v.mutable_grad().reset();
                                          model.forward(1).backward();
                                          if (step == 1) expect_all(own, 2);
                                        }
                                      }),
                       {"INVALID_ARGUMENT", "'w' was not zeroed after the last step"});
}

INSTANTIATE_TEST_SUITE_P(Sizes, OwnMemory, testing::Values(5, 4099));

/// Real parameters that a conjugate is made of: libtorch hands over gradients with its negative bit set.
struct Complex : torch::nn::Module {
  torch::Tensor re, im;
  explicit Complex(std::vector<std::int64_t> shape)
      : re(register_parameter("re", torch::full(shape, 1.0, torch::kDouble))),
        im(register_parameter("im", torch::full(shape, 0.5, torch::kDouble))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::view_as_real(x * torch::conj(torch::complex(re, im)).sum()).pow(3).mean();
  }
};

TEST(LazyBits, OfAGradientAreItsValues) {
  const auto part = torch::linspace(-1, 2, 24, torch::kDouble);
  const auto x = torch::complex(part, part.flip(0));
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {3}, {2000}}) {
    Complex reference(shape);
    reference.forward(x).backward();
    for (const int ranks : {1, 2, 3, 4}) {
      on_ranks(ranks, ThreadEngine::SharedMemory, [&](const Comm& comm) {
        Complex model(shape);
        DistributedDataParallel ddp(model, comm, {.bucket_bytes = 4096});
        for (int step = 0; step < 3; ++step) {
          for (auto& p : model.parameters()) p.mutable_grad().reset();
          const auto rows = 24 / ranks;
          model.forward(x.slice(0, comm.rank() * rows, (comm.rank() + 1) * rows)).backward();
          EXPECT_LE(test::relative_difference(model.im.grad(), reference.im.grad()), 1e-13);
          EXPECT_LE(test::relative_difference(model.re.grad(), reference.re.grad()), 1e-13);
          EXPECT_GT(clip_grad_norm(ddp, 1e9), 0);
        }
      });
    }
  }
}

TEST(LazyBits, OfBuffersParametersAndGatheredTensorsAreTheirValues) {
  on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    struct Net : torch::nn::Module {
      torch::Tensor w, b;
      Net(const torch::Tensor& negative, const torch::Tensor& conjugate)
          : w(register_parameter("w", negative)), b(register_buffer("b", conjugate)) {}
    };
    const auto values = torch::complex(torch::ones({4}), torch::full({4}, 2.0 + comm.rank()));
    const auto negative = torch::imag(torch::conj(values)), conjugate = torch::conj(values);
    ASSERT_TRUE(negative.is_neg() && conjugate.is_conj());
    const auto gathered = gather(comm, negative);
    expect_all(gathered[0], -2);
    expect_all(gathered[1], -3);
    Net net(negative.detach(), conjugate);
    DistributedDataParallel ddp(net, comm);
    expect_all(net.w.detach(), -2);
    expect_all(torch::imag(net.b), -2);
    EXPECT_FALSE(ddp.replica_difference());
  });
}

TEST(Complex, ParametersAreRefusedByName) {
  test::expect_all_say(test::failures(2,
                                      [](const Comm& comm) {
                                        struct Net : torch::nn::Module {
                                          torch::Tensor z =
                                              register_parameter("z", torch::ones({2}, torch::kComplexDouble));
                                        } net;
                                        DistributedDataParallel ddp(net, comm);
                                      }),
                       {"INVALID_ARGUMENT", "'z'", "ComplexDouble"});
}

// By a plain optimizer of libtorch's, which asks nobody.
TEST(Refused, ABackwardOverParametersThatLostTheirHooks) {
  struct Net : torch::nn::Module {
    torch::nn::Linear first{2, 3}, second{3, 1};
    Net() {
      register_module("first", first);
      register_module("second", second);
    }
  };
  const auto of_all = test::failures(2, [](const Comm& comm) {
    Net net;
    DistributedDataParallel ddp(net, comm);
    net.to(torch::kDouble);
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    net.second(net.first(torch::ones({2, 2}, torch::kDouble))).sum().backward();
    optimizer.step();
  });
  test::expect_all_say(of_all, {"ABORTED", "'first.weight'", "cast", "torch::load", "before wrapping"});
  const auto of_one = test::failures(2, [](const Comm& comm) {
    Net net;
    DistributedDataParallel ddp(net, comm);
    net.first->to(torch::kDouble);
    net.first(torch::ones({2, 2}, torch::kDouble)).sum().backward();  // reaches no hook
  });
  test::expect_all_say(of_one, {"ABORTED", "'first.weight'", "cast"});
}

TEST(Accumulation, ThatARankClearedAgainDoesNotCount) {
  on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    for (const bool to_none : {true, false}) {
      Dot model(5);
      DistributedDataParallel ddp(model, comm);
      Optimizer<torch::optim::SGD> optimizer(ddp, model.parameters(), torch::optim::SGDOptions(0.0));
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad(to_none);
        if (comm.rank() == 0) {
          {
            const auto alone = ddp.no_sync();
            model.forward(100).backward();  // to look at a gradient, say
          }
          optimizer.zero_grad(to_none);
        }
        model.forward(comm.rank() + 1.0).backward();
        expect_all(model.w.grad(), 1.5);
        optimizer.step();
      }
    }
  });
}

}  // namespace
}  // namespace paceline
