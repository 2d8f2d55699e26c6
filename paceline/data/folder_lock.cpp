#include "paceline/data/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "paceline/base/error.h"
#include "paceline/base/unique_fd.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

using FileKey = std::tuple<pid_t, dev_t, ino_t>;  // by process, since a forked one has the memory and not the lock

FileKey key_of(const struct stat& status) { return {::getpid(), status.st_dev, status.st_ino}; }

struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

[[noreturn]] void refuse(const fs::path& folder, int file) {
  struct flock holder = whole_file();
  const bool known = ::fcntl(file, F_GETLK, &holder) == 0 && holder.l_type != F_UNLCK && holder.l_pid > 0;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("cannot save to {}: another job saves there ({}). Give each job a folder of its own, or end the "
                  "other one first",
                  folder.string(),
                  known ? fmt::format("process {} of this machine", holder.l_pid) : "a process of another machine"));
}

}  // namespace

void own_folder(const fs::path& folder) {
  static std::mutex mutex;
  static std::multimap<FileKey, UniqueFd> owned;
  const std::lock_guard guard(mutex);
  const fs::path path = folder / ".paceline-lock";
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && owned.contains(key_of(status))) return;
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600));
  if (!file || ::fstat(file.get(), &status) != 0) {
    throw system_error(fmt::format("cannot save to {}: cannot open {}", folder.string(), path.string()), errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("cannot save to {}: {} is no regular file; remove it", folder.string(), path.string()));
  }
  struct flock lock = whole_file();
  if (::fcntl(file.get(), F_SETLK, &lock) != 0) {
    if (errno == EACCES || errno == EAGAIN) refuse(folder, file.get());
    return;  // a file system without locks
  }
  owned.emplace(key_of(status), std::move(file));  // never closed: closing any descriptor of the file ends the lock
}

}  // namespace paceline
