#include "paceline/base/durable_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "paceline/base/crc32c.h"
#include "paceline/base/error.h"

namespace paceline {

DurableFile::DurableFile(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd_) throw system_error(fmt::format("cannot create {}", path_.string()), errno);
}

DurableFile::~DurableFile() {
  if (!finished_) ::unlink(path_.c_str());
}

void DurableFile::write(std::span<const std::byte> data) {
  checksum_ = crc32c(data, checksum_);
  bytes_ += data.size();
  while (!data.empty()) {
    const ssize_t written = ::write(fd_.get(), data.data(), std::min<std::size_t>(data.size(), std::size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error(fmt::format("cannot write to {}", path_.string()), errno);
    data = data.subspan(static_cast<std::size_t>(written));
  }
}

void DurableFile::finish() {
  if (::fsync(fd_.get()) != 0) throw system_error(fmt::format("cannot sync {}", path_.string()), errno);
  fd_.reset();
  finished_ = true;
}

void sync_folder(const std::filesystem::path& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) throw system_error(fmt::format("cannot sync {}", folder.string()), errno);
}

std::vector<std::byte> read_whole_file(const std::filesystem::path& path, std::uint64_t limit) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw system_error(fmt::format("cannot open {}", path.string()), errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw system_error(fmt::format("cannot read {}", path.string()), errno);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > limit) {
    throw Error(ErrorCode::Corrupt, fmt::format("{} has {} bytes, more than {}", path.string(), size, limit));
  }
  std::vector<std::byte> data(size);
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t got = ::read(fd.get(), data.data() + done, data.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error(fmt::format("cannot read {}", path.string()), errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  data.resize(done);
  return data;
}

}  // namespace paceline
