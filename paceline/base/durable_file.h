#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "paceline/base/unique_fd.h"

namespace paceline {

/// A new file that is on the disk when finish() returns, or an Error with code System says why not. One that is not
/// finished is removed. Never one that was there before, nor what a symbolic link points to. For its owner only (0600),
/// unless `mode` says otherwise, of which the umask takes its part.
class DurableFile {
 public:
  explicit DurableFile(std::filesystem::path path, unsigned mode = 0600);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(std::span<const std::byte> data);
  void finish();

  std::uint64_t bytes() const { return bytes_; }
  /// CRC-32C of what was written.
  std::uint32_t checksum() const { return checksum_; }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t bytes_ = 0;
  std::uint32_t checksum_ = 0;
  bool finished_ = false;
};

/// Makes what was created, renamed or removed in a folder last.
void sync_folder(const std::filesystem::path& folder);

/// A path in `folder` that nobody can have put something at before: its name is random and begins with a dot.
std::filesystem::path unpredictable_path(const std::filesystem::path& folder);

/// Puts a file that holds `text` in the place of the one at `path`, if any: whoever reads it finds the old one or the
/// new one, whole. A symbolic link at `path` is replaced, not followed. Throws System, and leaves no half.
void replace_file(const std::filesystem::path& path, const std::string& text, unsigned mode = 0600);

}  // namespace paceline
