// Worker processes that die in the middle of collectives: the others name them, and never hold a wrong sum.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <time.h>

#include <random>
#include <thread>

#include "tests/support/job_worker.h"
#include "tests/support/launched_job.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

constexpr int kRanks = 4;

/// A job whose rank `victim` dies; checks that all others say so, once, and nothing else.
void expect_death(const std::string& worker, int victim, std::map<std::string, std::string> environment = {}) {
  for (const char* options : {"ASAN_OPTIONS", "TSAN_OPTIONS"}) environment[options] = "handle_segv=0:handle_sigbus=0";
  Job job(run_worker(kRanks, worker), {.environment = environment});
  EXPECT_NE(job.wait(), 0);
  EXPECT_TRUE(job.leaves_nothing());
  const std::string output = job.out() + job.err();
  EXPECT_EQ(count(output, "wrong"), 0u) << output;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    const std::string heard =
        fmt::format("[rank {}] heard: [paceline E201 PEER_LOST] rank {}: rank {} (", rank, rank, victim);
    EXPECT_EQ(count(output, heard), 1u) << output;
  }
}

TEST(Death, AtAnyMomentOfALoopOfCollectivesIsSeenByAllOthers) {
  const std::uint64_t seed = test::seed();
  std::mt19937_64 random(seed);
  for (int kill = 0; kill < 20 && !HasFailure(); ++kill) {
    SCOPED_TRACE(fmt::format("PACELINE_TEST_SEED={} kill {}", seed, kill));
    const int victim = static_cast<int>(random() % kRanks);
    const auto after_us = random() % 20'000;
    expect_death("AVictimIsKilled", victim,
                 {{"TEST_VICTIM", std::to_string(victim)}, {"TEST_AFTER_US", std::to_string(after_us)}});
  }
}

TEST(Death, WithAChunkInHandIsSeenByAllOthers) { expect_death("RankTwoDiesWithAChunk", 2); }

TEST(Death, InItsSliceIsSeenByAllOthers) { expect_death("RankTwoDiesInItsSlice", 2); }

TEST(Death, OfARankWhoseChildLivesOnIsSeenByAllOthers) { expect_death("RankTwoLeavesAChild", 2); }

// ---- What workers do. Disabled, so that they run only as workers.

long number_from(const char* variable) { return std::stol(std::getenv(variable)); }

/// SIGKILL from the kernel, between any two instructions.
void die_after(std::chrono::microseconds delay) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer;
  const itimerspec when{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = 1 + delay.count() * 1000}};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || ::timer_settime(timer, 0, &when, nullptr) != 0) {
    throw system_error("cannot set a timer", errno);
  }
}

TEST(Worker, DISABLED_AVictimIsKilled) {
  as_worker([](const Comm& comm) {
    constexpr std::size_t kMost = 300'000;
    const Buffer buffer = comm.allocate(kMost * sizeof(float));
    const std::span<float> memory(reinterpret_cast<float*>(buffer.data()), kMost);
    comm.barrier();
    if (comm.rank() == number_from("TEST_VICTIM")) die_after(std::chrono::microseconds(number_from("TEST_AFTER_US")));
    for (int step = 0;; ++step) {
      const std::size_t sizes[] = {1, 700, 20'000, kMost};
      const Algorithm algorithms[] = {Algorithm::Auto, Algorithm::Slices, Algorithm::ChunkQueue};
      const auto data = memory.first(sizes[step % 4]);
      std::fill(data.begin(), data.end(), static_cast<float>(step % 100 + comm.rank()));
      auto* const at = reinterpret_cast<std::byte*>(data.data());
      comm.start({.kind = Collective::AllReduce,
                  .dtype = Dtype::Float32,
                  .algorithm = algorithms[step % 3],
                  .count = data.size(),
                  .in = at,
                  .out = at})
          .wait();
      for (const float x : data) {
        if (x != static_cast<float>(kRanks * (step % 100) + 6)) throw std::runtime_error("wrong sum");
      }
    }
  });
}

/// Rank 2 comes last to an operation that the others have entered and do nothing for. Its own mapping of its buffer
/// has no access, so it dies when it touches the first chunk of its share.
void die_in_share(const Comm& comm, Algorithm algorithm) {
  constexpr std::size_t kFloats = 1'000'000;
  const Comm meeting = comm.duplicate();
  const Buffer buffer = comm.allocate(kFloats * sizeof(float));
  const Operation sum{.kind = Collective::AllReduce,
                      .dtype = Dtype::Float32,
                      .algorithm = algorithm,
                      .count = kFloats,
                      .in = buffer.data(),
                      .out = buffer.data()};
  Comm::Work work;
  if (comm.rank() != 2) work = comm.start(sum);
  meeting.barrier();
  if (comm.rank() == 2) {
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<std::uintptr_t>(buffer.data()) / page * page;
    const auto end = (reinterpret_cast<std::uintptr_t>(buffer.data()) + buffer.bytes()) / page * page;
    if (::mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_NONE) != 0) throw system_error("mprotect", errno);
    comm.start(sum);
    throw std::runtime_error("wrong: it lives");
  }
  EXPECT_THROW(meeting.barrier(), Error);  // rank 2 has died
  work.wait();                             // others cannot do the chunk that it has taken
  throw std::runtime_error("wrong: complete without the chunk that rank 2 has");
}

TEST(Worker, DISABLED_RankTwoDiesWithAChunk) {
  as_worker([](const Comm& comm) { die_in_share(comm, Algorithm::ChunkQueue); });
}

TEST(Worker, DISABLED_RankTwoDiesInItsSlice) {
  as_worker([](const Comm& comm) { die_in_share(comm, Algorithm::Slices); });
}

TEST(Worker, DISABLED_RankTwoLeavesAChild) {
  as_worker([](const Comm& comm) {
    comm.barrier();
    if (comm.rank() == 2) {
      const pid_t child = ::fork();
      if (child == 0) {
        for (;;) ::pause();  // with all of its parent's sockets
      }
      ::kill(::getpid(), SIGKILL);
    }
    comm.barrier();
  });
}

}  // namespace
}  // namespace paceline
