// Communicators between processes, started by the real launcher: they agree, and when one fails all say why.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/job_worker.h"
#include "tests/support/launched_job.h"

namespace paceline {
namespace {

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// By what the workers reach each other.
class Jobs : public testing::TestWithParam<const char*> {};

/// Runs a worker test on `n` ranks to its end and checks that nothing is left of it.
struct Ended {
  int exit_code;
  std::string out, err;

  Ended(int n, const std::string& worker, std::vector<std::string> options = {}) {
    options.insert(options.end(), {"--transport", Jobs::GetParam()});
    const auto shared_memory = files_in("/dev/shm");
    Job job(run_worker(n, worker, options));
    exit_code = job.wait();
    out = job.out();
    err = job.err();
    EXPECT_TRUE(job.leaves_nothing());
    EXPECT_EQ(files_in("/dev/shm"), shared_memory);
  }
  /// Lines of one rank that contain `part`.
  int heard(int rank, const std::string& part) const {
    int count = 0;
    for (const std::string& line : lines_of(out + err)) {
      count += line.find(fmt::format("[rank {}] heard", rank)) == 0 && line.find(part) != std::string::npos;
    }
    return count;
  }
};

TEST_P(Jobs, ProcessesReduceExactly) {
  for (const int n : {1, 2, 3, 5}) {
    const Ended job(n, "ReducesInManyWays");
    EXPECT_EQ(job.exit_code, 0) << job.out << job.err;
  }
}

TEST_P(Jobs, AKilledWorkerIsNamedByAllOthers) {
  const Ended job(4, "RankTwoIsKilled");
  EXPECT_EQ(job.exit_code, 128 + SIGKILL) << job.err;
  for (const int rank : {0, 1, 3}) EXPECT_EQ(job.heard(rank, "PEER_LOST] rank"), 1) << job.out << job.err;
  // "(pid 1) died", from a rank that saw it, or what the launcher says of it: whichever comes first.
  for (const int rank : {0, 1, 3}) EXPECT_EQ(job.heard(rank, ": rank 2 "), 1) << job.out << job.err;
  EXPECT_NE(job.err.find("rank 2"), std::string::npos);
  EXPECT_NE(job.err.find("SIGKILL"), std::string::npos) << job.err;
}

TEST_P(Jobs, AWorkerThatThrowsGivesItsReasonToAllOthers) {
  const Ended job(3, "RankOneThrows");
  EXPECT_EQ(job.exit_code, 1);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(job.heard(rank, "ABORTED] rank " + std::to_string(rank) + ": rank 1 gave up: the disk is on fire"), 1)
        << job.out << job.err;
  }
}

TEST_P(Jobs, AWorkerThatEndsWithoutAWordIsNamed) {
  const Ended job(2, "RankOneCallsExit");
  EXPECT_NE(job.exit_code, 0);
  EXPECT_EQ(job.heard(0, ": rank 1 "), 1) << job.out << job.err;
}

TEST_P(Jobs, AWorkerThatNeverJoinsIsNamed) {
  const Ended job(3, "RankOneNeverJoins", {"--timeout", "1"});
  EXPECT_NE(job.exit_code, 0);
  for (const int rank : {0, 2}) EXPECT_EQ(job.heard(rank, "rank 1 of 3 did not come"), 1) << job.out << job.err;
}

TEST_P(Jobs, AWorkerThatEndsBeforeItJoinsIsNamed) {
  const Ended job(3, "RankOneLeavesBeforeJoining");
  EXPECT_NE(job.exit_code, 0);
  for (const int rank : {0, 2}) EXPECT_EQ(job.heard(rank, "rank 1 exited"), 1) << job.out << job.err;
}

TEST_P(Jobs, ADisagreementIsTheSameMismatchOnAllRanks) {
  const Ended job(3, "RankOneDisagrees");
  EXPECT_NE(job.exit_code, 0);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(job.heard(rank,
                        "rank 0 calls all_reduce #2 (float32 x 1000, sum), but rank 1 calls all_reduce #2 "
                        "(float32 x 999, sum)"),
              1)
        << job.out << job.err;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Jobs, testing::Values("shm", "tcp"),
                         [](const auto& transport) { return transport.param; });

// ---- What workers do in the tests above. Disabled, so that they run only as workers.

[[noreturn]] void end(int code) {
  std::fflush(nullptr);
  ::_exit(code);
}

TEST(Worker, DISABLED_ReducesInManyWays) {
  as_worker([](const Comm& comm) {
    const int n = comm.world_size();
    const auto check = [&](const Comm& on) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{500'000}}) {
        std::vector<float> data(count);
        std::iota(data.begin(), data.end(), static_cast<float>(on.rank()));
        on.all_reduce<float>(data);
        const auto size = static_cast<float>(on.world_size());
        for (std::size_t i = 0; i < count; ++i) {
          if (data[i] != size * static_cast<float>(i) + size * (size - 1) / 2) throw std::runtime_error("wrong sum");
        }
      }
    };
    check(comm);
    check(comm.duplicate());
    check(comm.split(comm.rank() % 2));
    const std::string engine = n > 1 ? std::getenv("PACELINE_TRANSPORT") : "solo";
    if (comm.engine_name() != engine) throw std::runtime_error("not over " + engine);
  });
}

TEST(Worker, DISABLED_RankTwoIsKilled) {
  as_worker([](const Comm& comm) {
    for (int step = 0;; ++step) {
      if (comm.rank() == 2 && step == 100) ::raise(SIGKILL);
      comm.sum(1);
    }
  });
}

TEST(Worker, DISABLED_RankOneThrows) {
  as_worker([](const Comm& comm) {
    for (int step = 0;; ++step) {
      if (comm.rank() == 1 && step == 100) throw std::runtime_error("the disk is on fire");
      comm.sum(1);
    }
  });
}

TEST(Worker, DISABLED_RankOneCallsExit) {
  as_worker([](const Comm& comm) {
    comm.barrier();
    if (comm.rank() == 1) end(0);
    comm.barrier();
  });
}

TEST(Worker, DISABLED_RankOneNeverJoins) {
  if (std::string(std::getenv("RANK")) == "1") {
    for (;;) ::pause();
  }
  as_worker([](const Comm&) {});
}

TEST(Worker, DISABLED_RankOneLeavesBeforeJoining) {
  if (std::string(std::getenv("RANK")) == "1") end(0);
  as_worker([](const Comm&) {});
}

TEST(Worker, DISABLED_RankOneDisagrees) {
  as_worker([](const Comm& comm) {
    std::vector<float> data(comm.rank() == 1 ? 999 : 1000);
    comm.barrier();
    comm.all_reduce<float>(data);
  });
}

}  // namespace
}  // namespace paceline
