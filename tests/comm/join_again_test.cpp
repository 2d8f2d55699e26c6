// Comm::from_env() more than once: in a process, in one program after another, and in a child, which is refused.
// Workers are this very binary running one of the disabled Worker tests.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "tests/support/job_worker.h"
#include "tests/support/launched_job.h"

namespace paceline {
namespace {

TEST(Worker, DISABLED_JoinsAgain) {
  as_worker([](const Comm& first) {
    std::optional<Comm> second = Comm::from_env();
    for (int i = 0; i < 20; ++i) {
      if (first.sum(1) != 3 || second->sum(2) != 6) throw std::logic_error("a wrong sum");
    }
    second.reset();
    const Comm third = Comm::from_env();
    if (third.sum(1) != 3) throw std::logic_error("a wrong sum");
    if (first.rank() == 0) fmt::print("joined thrice\n");
  });
}

TEST(Worker, DISABLED_ForksAndJoins) {
  as_worker([](const Comm& comm) {
    if (comm.rank() == 1) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        try {
          (void)Comm::from_env();
          ::_exit(2);
        } catch (const Error& error) {
          const bool told = contains(error.message(), "has joined this job as rank 1");
          ::_exit(error.code() == ErrorCode::InvalidArgument && told ? 0 : 3);
        }
      }
      int status = -1;
      ::waitpid(child, &status, 0);
      if (status != 0) throw std::logic_error(fmt::format("the child ended with {}", status));
    }
    if (comm.sum(1) != 3 || Comm::from_env().sum(1) != 3) throw std::logic_error("a wrong sum");
    if (comm.rank() == 0) fmt::print("not disturbed\n");
  });
}

TEST(Worker, DISABLED_Sums) {
  as_worker([](const Comm& comm) {
    if (comm.sum(1) != 3) throw std::logic_error("a wrong sum");
    if (comm.rank() == 0) fmt::print("summed\n");
  });
}

struct JoinAgain : testing::TestWithParam<const char*> {};

TEST_P(JoinAgain, MeetsTheOthersNextJoin) {
  Job job(run_worker(3, "JoinsAgain", {"--transport", GetParam(), "--timeout", "60"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_TRUE(contains(job.out(), "joined thrice")) << job.out() << job.err();
}

// Thread sanitizer ends a forked child that starts a thread, as connecting does.
#ifndef __SANITIZE_THREAD__
TEST_P(JoinAgain, IsRefusedToAForkedChild) {
  Job job(run_worker(3, "ForksAndJoins", {"--transport", GetParam(), "--timeout", "60"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_TRUE(contains(job.out(), "not disturbed")) << job.out() << job.err();
}
#endif

TEST_P(JoinAgain, WorksForOneProgramAfterAnother) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string() +
                              " --gtest_also_run_disabled_tests --gtest_filter=Worker.DISABLED_Sums";
  Job job(run_sh(3, program + " && " + program, {"--transport", GetParam(), "--timeout", "60"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(count(job.out(), "summed"), 2u) << job.out() << job.err();
}

INSTANTIATE_TEST_SUITE_P(Each, JoinAgain, testing::Values("auto", "shm", "tcp"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace paceline
