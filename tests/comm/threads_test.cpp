// One communicator, called from several threads of a rank at once: refused, whatever carries it, and nothing is harmed.
// Threads that take turns are fine.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "tests/support/world.h"

namespace paceline {
namespace {

/// What `call` throws, called again and again until it throws.
Error refusal(const std::function<void()>& call) {
  const Deadline deadline(std::chrono::seconds(60));
  while (!deadline.passed()) {
    try {
      call();
    } catch (const Error& error) {
      return error;
    }
    std::this_thread::yield();
  }
  return Error(ErrorCode::Timeout, "nothing was refused");
}

struct CommOfThreads : testing::TestWithParam<ThreadEngine> {};

// Rank 0 has a thread that waits for rank 1, which comes once another one was refused.
TEST_P(CommOfThreads, RefusesASecondOneWhileTheFirstIsInACall) {
  std::atomic<bool> refused{false};
  test::on_ranks(2, GetParam(), [&](const Comm& comm) {
    std::vector<float> data(1000, 1);
    const Operation sum{.kind = Collective::AllReduce,
                        .dtype = Dtype::Float32,
                        .count = data.size(),
                        .in = std::as_bytes(std::span(data)).data(),
                        .out = std::as_writable_bytes(std::span(data)).data()};
    Comm::Work complete = comm.start(sum);
    complete.wait();
    if (comm.rank() == 1) {
      while (!refused) std::this_thread::yield();
      comm.barrier();
    } else {
      std::thread waits([&] {
        // The other one may be in its call at that moment.
        for (bool done = false; !done;) {
          try {
            comm.barrier();
            done = true;
          } catch (const Error& error) {
            ASSERT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
          }
        }
      });
      const Error error = refusal([&] { complete.test(); });
      EXPECT_EQ(error.fault(), Fault::BadArgument) << error.what();
      EXPECT_NE(error.message().find("another thread"), std::string::npos) << error.what();
      EXPECT_NE(error.message().find("duplicate()"), std::string::npos) << error.what();
      for (const auto& call : std::vector<std::function<void()>>{
               [&] { comm.all_reduce<float>(data); }, [&] { (void)comm.start(sum); }, [&] { (void)comm.duplicate(); },
               [&] { (void)comm.sum(1); }, [&] { complete.wait(); }}) {
        EXPECT_EQ(refusal(call).code(), ErrorCode::InvalidArgument);
      }
      refused = true;
      waits.join();
    }
    EXPECT_EQ(data, std::vector<float>(1000, 2)) << "a refused call did something";
    EXPECT_EQ(comm.sum(1), 2) << "the communicator must live on";
  });
}

TEST_P(CommOfThreads, TakeTurns) {
  test::on_ranks(2, GetParam(), [&](const Comm& comm) {
    for (int turn = 0; turn < 20; ++turn) {
      std::vector<float> data(1000, 1);
      Comm::Work work = comm.start({.kind = Collective::AllReduce,
                                    .dtype = Dtype::Float32,
                                    .count = data.size(),
                                    .in = std::as_bytes(std::span(data)).data(),
                                    .out = std::as_writable_bytes(std::span(data)).data()});
      std::thread([&] {
        work.wait();
        EXPECT_EQ(comm.sum(1), 2);
      }).join();
      EXPECT_EQ(data, std::vector<float>(1000, 2));
    }
  });
}

// Each thread of a rank with a communicator of its own.
TEST_P(CommOfThreads, AreIndependentWithOneEach) {
  test::on_ranks(2, GetParam(), [&](const Comm& comm) {
    std::vector<Comm> own;
    for (int i = 0; i < 3; ++i) own.push_back(comm.duplicate());
    std::vector<std::thread> threads;
    for (const Comm& one : own) {
      threads.emplace_back([&one] {
        for (int i = 0; i < 20; ++i) EXPECT_EQ(one.sum(1), 2);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

INSTANTIATE_TEST_SUITE_P(Each, CommOfThreads,
                         testing::Values(ThreadEngine::SharedMemory, ThreadEngine::Messages, ThreadEngine::Tcp),
                         [](const auto& test) { return test::engine_label(test.param); });

}  // namespace
}  // namespace paceline
