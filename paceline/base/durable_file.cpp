#include "paceline/base/durable_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "paceline/base/crc32c.h"
#include "paceline/base/error.h"
#include "paceline/base/random_bytes.h"

namespace paceline {

DurableFile::DurableFile(std::filesystem::path path, unsigned mode) : path_(std::move(path)) {
  fd_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
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
  if (fd && ::fsync(fd.get()) == 0) return;
  // Some file systems know no fsync of a folder; what was put there is in its place all the same.
  if (fd && (errno == EINVAL || errno == EROFS)) return;
  throw system_error(fmt::format("cannot sync {}", folder.string()), errno);
}

std::filesystem::path unpredictable_path(const std::filesystem::path& folder) {
  return folder / (".paceline-" + random_digits(2));
}

void replace_file(const std::filesystem::path& path, const std::string& text, unsigned mode) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const std::filesystem::path temporary = unpredictable_path(folder);
  {
    DurableFile file(temporary, mode);
    file.write(std::as_bytes(std::span(text)));
    file.finish();
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary.c_str());
    throw system_error(fmt::format("cannot put a file in its place, {}", path.string()), reason);
  }
  sync_folder(folder);
}

}  // namespace paceline
