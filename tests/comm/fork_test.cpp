// Children that a rank forks, and that end as processes do: the job of their parent goes on as if they had never been.
// Workers are this very binary running one of the disabled Worker tests.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/job_worker.h"
#include "tests/support/launched_job.h"

namespace {

bool is_child = false;

}  // namespace

// Asked by the leak sanitizer before it looks for leaks at exit. In a forked child it may wait for ever, for a lock of
// its allocator that a thread of the parent held when that forked.
extern "C" int __lsan_is_turned_off() { return is_child ? 1 : 0; }

namespace paceline {
namespace {

/// Forks a child that does `body`, then ends; its exit status.
int in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    is_child = true;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    std::exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

std::optional<Comm> global;  // the only one of its kind: exit() destroys the communicator

void reduce(const Comm& comm) {
  const float before[] = {1, 2, 3};
  for (int i = 0; i < 20; ++i) {
    float data[3];
    std::memcpy(data, before, sizeof data);
    comm.all_reduce<float>(data);
    ASSERT_EQ(data[2], 3 * static_cast<float>(comm.world_size()));
  }
}

/// A child destroys copies of all that a rank has, while that rank and the others work.
void fork_in(const Comm& comm) {
  // Buffers that hold something, an operation under way, and communicators of communicators.
  Buffer buffer = comm.allocate(1 << 20);
  std::memset(buffer.data(), 7, buffer.bytes());
  std::vector<Comm> more{comm.duplicate(), comm.split(0, -comm.rank())};
  std::vector<float> sent(100'000, 1);
  Comm::Work work = more[0].start({.kind = Collective::AllReduce,
                                   .dtype = Dtype::Float32,
                                   .count = sent.size(),
                                   .in = std::as_bytes(std::span(sent)).data(),
                                   .out = std::as_writable_bytes(std::span(sent)).data()});
  if (comm.rank() == 1) {
    const int status = in_child([&] {
      for (const auto& call : std::vector<std::function<void()>>{[&] { comm.barrier(); }, [&] { work.wait(); },
                                                                 [&] { (void)comm.allocate(1); },
                                                                 [&] {
                                                                   comm.fail({ErrorCode::Aborted, "a child's"});
                                                                 },
                                                                 [&] { (void)comm.duplicate(); }}) {
        try {
          call();
          ::_exit(2);
        } catch (const Error& error) {
          if (error.code() != ErrorCode::InvalidArgument || !contains(error.message(), "forked")) ::_exit(3);
        }
      }
      comm.abort("a child's");
      comm.set_step(1000);
      work = {};
      more.clear();
      buffer = {};
    });
    EXPECT_EQ(status, 0);
  }
  work.wait();
  EXPECT_EQ(sent, std::vector<float>(sent.size(), static_cast<float>(comm.world_size())));
  EXPECT_EQ(std::count(buffer.data(), buffer.data() + buffer.bytes(), std::byte{7}), 1 << 20) << "given back";
  for (const Comm& one : more) reduce(one);
  reduce(comm);
}

TEST(Worker, DISABLED_Forks) {
  try {
    global = Comm::from_env();
    fork_in(*global);
    if (global->rank() == 0 && !testing::Test::HasFailure()) fmt::print("the job went on\n");
    global.reset();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
    std::fflush(nullptr);
    ::_exit(1);
  }
}

class Fork : public testing::TestWithParam<const char*> {};

TEST_P(Fork, AChildThatEndsLeavesTheJobAlone) {
  Job job(run_worker(3, "Forks", {"--transport", GetParam()}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_TRUE(contains(job.out(), "[rank 0] the job went on\n")) << job.out() << job.err();
}

INSTANTIATE_TEST_SUITE_P(Each, Fork, testing::Values("shm", "tcp"), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace paceline
