// The job status: what workers write there, and what is read from it whatever they write.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "paceline/comm/status/status_view.h"
#include "paceline/comm/status/status_writer.h"
#include "paceline/launch/failure/watch.h"
#include "paceline/tools/ps/jobs.h"
#include "tests/support/launched_job.h"
#include "tests/support/new_job_status.h"
#include "tests/support/world.h"

namespace paceline::tools {
namespace {

using namespace std::chrono_literals;
using test::kWorld;
using test::new_job_status;
using test::sum_of;

// ---- What a worker writes.

TEST(JobStatus, ShowsWhatAWorkerWaitsInAndWhatItCompleted) {
  const auto job_status = new_job_status();
  StatusWriter writer(job_status, 1);
  EXPECT_EQ(whereabouts(view_of(*job_status, 1, now()), now()), "user code, before its first operation");
  const auto first = writer.enter(sum_of(100'000), 1, kWorld);
  RankView view = view_of(*job_status, 1, now());
  EXPECT_EQ(view.rank, 1);
  EXPECT_EQ(view.pid, ::getpid());
  ASSERT_NE(view.waiting(), nullptr);
  EXPECT_EQ(view.waiting()->text, "all_reduce #1 (float32 x 100000, sum)");
  EXPECT_EQ(whereabouts(view, now()), "in all_reduce #1 (float32 x 100000, sum) since 0.0 s");
  writer.complete(first, 100'000);
  writer.set_step(17);
  view = view_of(*job_status, 1, now());
  EXPECT_EQ(view.waiting(), nullptr);
  EXPECT_EQ(last_known(view), "after all_reduce #1 (float32 x 100000, sum), step 17");
  EXPECT_TRUE(view.operations.front().timed);
  writer.fail(writer.enter({.kind = Collective::Barrier}, 2, kWorld));
  view = view_of(*job_status, 1, now());
  EXPECT_TRUE(view.operations.front().failed);
  EXPECT_EQ(view.waiting(), nullptr);
  EXPECT_TRUE(view_of(*job_status, 0, now()).operations.empty());
}

TEST(JobStatus, AStartedOperationIsWaitedInOnlyWhileTheWorkerDoes) {
  const auto job_status = new_job_status();
  StatusWriter writer(job_status, 0);
  const auto child = status_name("world/0.0");
  const auto started = writer.enter(sum_of(8), 3, child);
  writer.go_on(started);
  EXPECT_EQ(view_of(*job_status, 0, now()).waiting(), nullptr);
  EXPECT_EQ(writer.wait_for(started, 3, child), started);
  const RankView view = view_of(*job_status, 0, now());
  ASSERT_NE(view.waiting(), nullptr);
  EXPECT_EQ(view.waiting()->text, "all_reduce #3 (float32 x 8, sum) of 'world/0.0'");
  writer.complete(started, 8);
  EXPECT_EQ(view_of(*job_status, 0, now()).waiting(), nullptr);
  // Long ago: the job status has forgotten it, and shows the wait all the same.
  for (std::uint64_t number = 4; number < 40; ++number) writer.go_on(writer.enter(sum_of(8), number, child));
  EXPECT_GT(writer.wait_for(started, 3, child), started);
  EXPECT_EQ(view_of(*job_status, 0, now()).waiting()->text, "operation #3 of 'world/0.0'");
}

TEST(JobStatus, KeepsTheLastSixteenOperations) {
  const auto job_status = new_job_status();
  StatusWriter writer(job_status, 0);
  for (std::uint64_t number = 1; number <= 100; ++number) writer.complete(writer.enter(sum_of(1), number, kWorld), 1);
  const RankView view = view_of(*job_status, 0, now());
  ASSERT_EQ(view.operations.size(), 16u);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(view.operations[i].number, 100 - i);
}

TEST(JobStatus, AHeartbeatComesFromAThreadThatEndsWithTheWriter) {
  const auto job_status = new_job_status();
  {
    StatusWriter writer(job_status, 0);
    EXPECT_TRUE(view_of(*job_status, 0, now()).beats);
    const std::uint64_t before = view_of(*job_status, 0, now()).heartbeat;
    EXPECT_TRUE(eventually([&] { return view_of(*job_status, 0, now()).heartbeat >= before + 2; }));
  }
  EXPECT_FALSE(view_of(*job_status, 0, now()).beats);
  StatusWriter again(job_status, 0);
  EXPECT_EQ(again.enter(sum_of(1), 1, kWorld), 1u);
}

// ---- Workers that die or write nonsense.

TEST(JobStatus, CanBeReadWhateverAWorkerWroteThere) {
  const std::uint64_t seed = test::seed();
  SCOPED_TRACE(fmt::format("PACELINE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  const auto job_status = new_job_status();
  launch::JobWatch watch(*job_status, {.silence = 2s, .stuck = 2s});
  auto* const bytes = reinterpret_cast<std::uint64_t*>(&job_status->slot(0));
  for (int round = 0; round < 2000; ++round) {
    for (std::size_t i = 0; i < sizeof(StatusSlot) / 8; ++i) {
      // Random words, and such as come near to sense.
      bytes[i] = round % 2 == 0 ? random() : random() % 20 << (random() % 2 * 8);
    }
    const Nanoseconds at = now();
    const RankView view = view_of(*job_status, 0, at);
    EXPECT_LE(view.operations.size(), 16u);
    for (const OperationView& one : view.operations) {
      EXPECT_LT(one.text.size(), 200u);
      EXPECT_TRUE(std::all_of(one.text.begin(), one.text.end(), [](char c) { return c >= ' ' && c <= '~'; }));
      EXPECT_LE(one.entered, at);
    }
    EXPECT_GE(view.beat_age, 0ns);
    EXPECT_FALSE(rank_table({view}, at).empty());
    EXPECT_FALSE(operations_text({view}, 16, at).empty());
    watch.look(at + round * 250ms);
  }
}

TEST(JobStatus, IsReadableWheneverTheWriterIsKilled) {
  const std::uint64_t seed = test::seed();
  SCOPED_TRACE(fmt::format("PACELINE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  std::size_t seen = 0;
  for (int kill_number = 0; kill_number < test::repeats(30); ++kill_number) {
    const auto job_status = new_job_status();
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      StatusWriter writer(job_status, 0);
      for (std::uint64_t number = 1;; ++number) writer.complete(writer.enter(sum_of(number), number, kWorld), 1);
    }
    // The first entry is the last to be filled. Not all of the others need stand still for as long as a look takes.
    EXPECT_TRUE(eventually([&] { return job_status->slot(0).operations[0].sequence.load() >= 16; }));
    for (auto looks = random() % 3000; looks > 0; --looks) {
      const RankView view = view_of(*job_status, 0, now());
      for (const OperationView& one : view.operations) {
        // Not half of one and half of another.
        EXPECT_EQ(one.text, fmt::format("all_reduce #{} (float32 x {}, sum)", one.number, one.number));
      }
      seen += view.operations.size();
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_GE(view_of(*job_status, 0, now()).operations.size(), 15u);
  }
  EXPECT_GT(seen, 0u) << "nothing was read while it was written to";
}

int status_of_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);  // a sanitizer's would exit
    try {
      body();
    } catch (const std::exception&) {
      ::_exit(2);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(JobStatus, AWorkerCanWriteToItsOwnSlotOnly) {
  const auto job_status = new_job_status();
  const std::string address = job_status->address();
  const auto writes = [&](auto&& where) {
    return status_of_child([&] {
      const JobStatus own(address, 1);
      where(own)->store(7);
    });
  };
  EXPECT_EQ(writes([](const JobStatus& own) { return &own.slot(1).pid; }), 0);
  EXPECT_EQ(job_status->slot(1).pid, 7);
  const int other = writes([](const JobStatus& own) { return &own.slot(0).pid; });
  EXPECT_TRUE(WIFSIGNALED(other) && WTERMSIG(other) == SIGSEGV) << other;
  const int header =
      writes([](const JobStatus& own) { return const_cast<std::atomic<std::uint32_t>*>(&own.header().failure.set); });
  EXPECT_TRUE(WIFSIGNALED(header) && WTERMSIG(header) == SIGSEGV) << header;
}

TEST(JobStatus, ItsMemoryCannotBeTakenAway) {
  const auto job_status = new_job_status();
  EXPECT_NE(::ftruncate(job_status->fd(), 0), 0);
  EXPECT_EQ(errno, EPERM);
}

// ---- How workers find it.

TEST(JobStatus, IsFoundThroughTheLauncherWhereItsDescriptorWasClosed) {
  const auto job_status = new_job_status();
  const std::string address = job_status->address();
  EXPECT_EQ(status_of_child([&] {
              ::close(job_status->fd());
              const JobStatus found(address, 0);
            }),
            0);
  EXPECT_EQ(status_of_child([&] {
              ::dup2(::open("/dev/null", O_RDWR), job_status->fd());  // another file has the number now
              const JobStatus found(address, 0);
            }),
            0);
}

TEST(JobStatus, WhatIsNoneIsRefused) {
  const auto refusal = [](const std::string& address, int slot) -> std::string {
    try {
      const JobStatus job_status(address, slot);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal("seven", 0).find("PACELINE_JOB_STATUS=seven is no job status"), std::string::npos);
  EXPECT_NE(refusal("987654/1", 0).find("descriptor 987654 is not the launcher's job status"), std::string::npos);
  const UniqueFd empty(::memfd_create("other", MFD_ALLOW_SEALING));
  EXPECT_NE(refusal(fmt::format("{}/{}", empty.get(), ::getpid()), 0).find("this is no job status"), std::string::npos);
  const auto job_status = new_job_status();
  EXPECT_NE(refusal(job_status->address(), 2).find("no slot 2"), std::string::npos);
  EXPECT_THROW(JobStatus(StatusFacts{.slots = 0}), Error);
}

// As where /proc is of another PID namespace.
TEST(JobStatus, OfAnotherLauncherIsRefused) {
  const auto job_status = new_job_status();
  const pid_t other = ::fork();  // has the job status, but did not make it
  if (other == 0) {
    ::pause();
    ::_exit(0);
  }
  EXPECT_EQ(status_of_child([&] {
              ::dup2(::open("/dev/null", O_RDWR), job_status->fd());
              try {
                const JobStatus found(fmt::format("{}/{}", job_status->fd(), other), 0);
              } catch (const Error& error) {
                ::_exit(std::string(error.what()).find("shows another job's") != std::string::npos ? 7 : 8);
              }
            }),
            W_EXITCODE(7, 0));
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
}

// ---- The job's failure.

TEST(JobStatus, TheFirstFailureIsWhatAllRanksThrow) {
  const auto job_status = new_job_status();
  job_status->check(0, "barrier #1");
  job_status->fail({Fault::PeerSilent, "rank 1 (host b, pid 4) sent no heartbeat", Error::kNoRank, 1});
  job_status->fail({Fault::PeerDied, "rank 0 was killed", Error::kNoRank, 0});
  for (const int rank : {0, 1}) {
    try {
      job_status->check(rank, "barrier #1");
      ADD_FAILURE() << "did not throw";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::PeerLost);
      EXPECT_EQ(error.fault(), Fault::PeerSilent);
      EXPECT_EQ(error.peer(), 1);
      const std::string text = error.what();
      const std::string begin = fmt::format(
          "[paceline E203 PEER_LOST] rank {}: rank 1 (host b, pid 4) sent no heartbeat. Rank {} saw it ", rank, rank);
      EXPECT_TRUE(text.starts_with(begin)) << text;
      EXPECT_TRUE(text.ends_with(" s later in barrier #1")) << text;
    }
  }
}

}  // namespace
}  // namespace paceline::tools
