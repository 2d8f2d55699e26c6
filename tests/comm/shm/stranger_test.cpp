// Another user of the host, and junk, at the sockets over which ranks pass each other their shared memory: ranks meet
// all the same.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/net/unix_socket.h"
#include "paceline/store/store.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

/// A process that fills the queue of whoever listens under a name, some of it with junk, and stays. Of another user
/// where this one may become that (root); else of this one, as far as a stranger can be of the same.
class Crowd {
 public:
  Crowd() {
    int to[2], from[2];
    EXPECT_EQ(::pipe(to), 0);
    EXPECT_EQ(::pipe(from), 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) ::_exit(1);
      char name[UnixAddress::kLongest];
      const ssize_t length = ::read(to[0], name, sizeof name);
      if (length > 0) knock(std::string(name, static_cast<std::size_t>(length)));
      (void)!::write(from[1], "x", 1);
      (void)!::read(to[0], name, 1);
      ::_exit(0);
    }
    name_ = UniqueFd(to[1]);
    done_ = UniqueFd(from[0]);
    ::close(to[0]);
    ::close(from[1]);
  }
  ~Crowd() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  void gather_at(const std::string& name) {
    EXPECT_EQ(::write(name_.get(), name.data(), name.size()), static_cast<ssize_t>(name.size()));
    char byte = 0;
    EXPECT_EQ(::read(done_.get(), &byte, 1), 1);
  }

 private:
  static void knock(const std::string& name) {
    const UnixAddress address(name);
    for (int i = 0; i < 6000; ++i) {
      const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
      if (socket < 0 || ::connect(socket, address.get(), address.length()) != 0) return;  // the queue is full
      if (i % 2 == 0) (void)!::send(socket, "junk", 4, MSG_NOSIGNAL);
    }
  }

  pid_t child_ = 0;
  UniqueFd name_, done_;
};

struct ShmStrangers : testing::TestWithParam<const char*> {};

TEST_P(ShmStrangers, DoNotKeepRanksFromMeeting) {
  const std::string key = GetParam();
  Crowd crowd;
  const auto store = make_memory_store();
  const auto work = [&](int rank) {
    try {
      const CommOptions options{.timeout = 60s};
      const Comm comm = key == "host" ? Comm::over_hosts(store, "world", rank, 2, {}, options)
                                      : Comm::over_shared_memory(store, "world", rank, 2, options);
      EXPECT_STREQ(comm.engine_name(), "shm");
      EXPECT_EQ(comm.sum(1), 2);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  };
  std::thread first([&] { work(0); });
  crowd.gather_at(store->get(key + "/world/0", Deadline(60s)).substr(2));
  std::thread second([&] { work(1); });
  first.join();
  second.join();
}

INSTANTIATE_TEST_SUITE_P(Each, ShmStrangers, testing::Values("shm", "host"),
                         [](const auto& test) { return test.param; });

TEST(UnixSocket, ACallToAFullQueueHasADeadline) {
  const UnixListener listener(SOCK_SEQPACKET, 0);
  const UniqueFd first = call_unix_socket(listener.name(), Deadline(60s));
  EXPECT_TRUE(first);
  const UniqueFd second = call_unix_socket(listener.name(), Deadline(20ms));
  EXPECT_FALSE(second);
  EXPECT_EQ(errno, EAGAIN);
}

}  // namespace
}  // namespace paceline
