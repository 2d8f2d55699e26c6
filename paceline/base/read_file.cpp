#include "paceline/base/read_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "paceline/base/error.h"

namespace paceline {
namespace {

Error not_regular(const std::filesystem::path& path) {
  return {ErrorCode::Corrupt, fmt::format("{} is no regular file", path.string())};
}

}  // namespace

RegularFile::RegularFile(std::filesystem::path path, Links links) : path_(std::move(path)) {
  const int follow = links == Links::Refuse ? O_NOFOLLOW : 0;
  fd_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | follow));
  if (!fd_ && errno == ELOOP && links == Links::Refuse) throw not_regular(path_);
  if (!fd_) throw system_error(fmt::format("cannot open {}", path_.string()), errno);
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) throw system_error(fmt::format("cannot read {}", path_.string()), errno);
  if (!S_ISREG(status.st_mode)) throw not_regular(path_);
  size_ = static_cast<std::uint64_t>(status.st_size);
}

std::size_t RegularFile::read(std::span<std::byte> into) {
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t got =
        ::read(fd_.get(), into.data() + done, std::min<std::size_t>(into.size() - done, std::size_t{1} << 30));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error(fmt::format("cannot read {}", path_.string()), errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

std::vector<std::byte> read_whole_file(const std::filesystem::path& path, std::uint64_t limit, Links links) {
  RegularFile file(path, links);
  if (file.size() > limit) {
    throw Error(ErrorCode::Corrupt, fmt::format("{} has {} bytes, more than {}", path.string(), file.size(), limit));
  }
  std::vector<std::byte> data(file.size());
  data.resize(file.read(data));
  return data;
}

}  // namespace paceline
