#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "paceline/base/unique_fd.h"

namespace paceline {

/// A new file that is on the disk when finish() returns, or an Error with code System says why not. One that is not
/// finished is removed. For its owner only (0600).
class DurableFile {
 public:
  explicit DurableFile(std::filesystem::path path);
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

/// All of a file; at most `limit` bytes. Throws System, or Corrupt where it is longer.
std::vector<std::byte> read_whole_file(const std::filesystem::path& path, std::uint64_t limit = UINT64_MAX);

}  // namespace paceline
