// Saving to a disk that is full, at whatever point that happens: a file system of its own, of a few pages or inodes.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>

#include "tests/support/temporary_folder.h"
#include "tests/train/saved_job.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using test::Samples;
using test::SmallJob;

/// Whoever may not mount is root in a name space of their own, where the system allows that.
bool become_able_to_mount() {
  if (::geteuid() == 0) return ::unshare(CLONE_NEWNS) == 0;
  const std::string user = std::to_string(::geteuid()), group = std::to_string(::getegid());
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << "0 " + user + " 1";
  std::ofstream("/proc/self/gid_map") << "0 " + group + " 1";
  return ::geteuid() == 0;
}

/// Runs `body` in a process that has a small tmpfs at `at`, which goes with it. Exceptions and failures are the test's.
void with_small_disk(const fs::path& at, const std::function<void()>& body) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!become_able_to_mount() || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", at.c_str(), "tmpfs", 0, "size=1m,nr_inodes=200,mode=0700") != 0) {
      ADD_FAILURE() << "cannot mount a tmpfs: " << std::strerror(errno);
    } else {
      try {
        body();
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
    std::fflush(stdout);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "see above";
}

enum class Full { Pages, Inodes };

/// Leaves `free` pages or inodes.
void fill(const fs::path& disk, Full full, std::size_t free) {
  struct statvfs now {};
  ASSERT_EQ(::statvfs(disk.c_str(), &now), 0);
  if (full == Full::Pages) {
    ASSERT_GT(now.f_bavail, free);
    std::ofstream(disk / "filler") << std::string((now.f_bavail - free) * now.f_frsize, 'x');
  } else {
    ASSERT_GT(now.f_favail, free);
    for (std::size_t i = now.f_favail; i > free; --i) std::ofstream(disk / ("filler-" + std::to_string(i)));
  }
}

void make_room(const fs::path& disk) {
  std::vector<fs::path> fillers;
  for (const auto& entry : fs::directory_iterator(disk)) {
    if (entry.path().filename().string().starts_with("filler")) fillers.push_back(entry.path());
  }
  for (const fs::path& filler : fillers) fs::remove(filler);
}

/// The file or folder a message is about, without the ".part" that it had.
std::string culprit(const std::string& message, const fs::path& disk) {
  const auto begin = message.find(disk.string()), end = message.find(": No space left on device");
  if (begin == std::string::npos || end == std::string::npos) return "";
  return fs::path(message.substr(begin, end - begin)).filename().string();
}

/// With ever more room, until it is enough; what was told to be without any.
std::set<std::string> save_with_ever_more_room(const Comm& comm, const fs::path& disk, Full full) {
  const Samples all(60);
  SmallJob job(comm, all);
  job.run(1);
  const fs::path good = save(disk / "saves", job.ddp, job.job);
  const auto hash = job.hash();
  std::set<std::string> culprits;
  for (std::size_t free = 0;; ++free) {
    if (comm.rank() == 0) fill(disk, full, free);
    comm.barrier();
    std::string message;
    try {
      EXPECT_NE(save(disk / "saves", job.ddp, job.job), good);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::System);
      message = error.message();
    }
    for (const std::string& theirs : comm.gather(message)) EXPECT_EQ(theirs, message) << "the same on all ranks";
    if (comm.rank() == 0) make_room(disk);
    comm.barrier();
    if (message.empty()) break;
    EXPECT_NE(culprit(message, disk), "") << message;
    culprits.insert(culprit(message, disk));
    std::vector<fs::path> left;
    for (const auto& entry : fs::directory_iterator(disk / "saves")) {
      if (entry.path().filename() != ".paceline-lock") left.push_back(entry.path());
    }
    EXPECT_EQ(left, std::vector{good}) << "nothing but the last checkpoint, after: " << message;
    SmallJob again(comm, all);
    const auto loaded = load(disk / "saves", again.ddp, again.job);
    EXPECT_TRUE(loaded && loaded->path == good && loaded->damaged.empty() && again.hash() == hash);
    comm.barrier();
  }
  job.run(1);  // the communicator lives on
  return culprits;
}

void check(Full full, const std::vector<std::string>& wanted) {
  const TemporaryFolder folder;
  with_small_disk(folder.path, [&] {
    test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      const auto culprits = save_with_ever_more_room(comm, folder.path, full);
      for (const std::string& name : wanted) EXPECT_TRUE(culprits.contains(name)) << name;
    });
  });
  EXPECT_TRUE(fs::is_empty(folder.path)) << "nothing was written to the disk below";
}

TEST(DiskFull, IsAnErrorOnAllRanksThatNamesTheFileAndTheLastCheckpointStays) {
  check(Full::Pages, {"rank-00000.safetensors", "manifest.json"});
}

TEST(DiskFull, AlsoWithoutRoomForAnotherFile) {
  check(Full::Inodes, {"save-000002.part", "rank-00000.safetensors", "manifest.json"});
}

}  // namespace
}  // namespace paceline
