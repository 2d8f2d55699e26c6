#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "paceline/base/unique_fd.h"

namespace paceline {

/// What becomes of a path whose last part is a symbolic link.
enum class Links { Follow, Refuse };

/// A file to read. Throws Corrupt where it is no regular one: a FIFO would wait for a writer, a device never ends.
class RegularFile {
 public:
  explicit RegularFile(std::filesystem::path path, Links links = Links::Follow);

  /// When it was opened.
  std::uint64_t size() const { return size_; }
  /// The next bytes; fewer than asked for at the file's end only. Throws System.
  std::size_t read(std::span<std::byte> into);

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
};

/// All of a file; at most `limit` bytes. Throws System, or Corrupt where it is longer or no regular file.
std::vector<std::byte> read_whole_file(const std::filesystem::path& path, std::uint64_t limit = UINT64_MAX,
                                       Links links = Links::Follow);

}  // namespace paceline
