#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>

#include "paceline/base/unique_fd.h"

namespace paceline {

/// Memory that other processes of this host can map: an anonymous file (memfd) without a name in the file system, gone
/// with its last user. It is mapped once, at the largest size it may reach, and grows by committing pages at its end,
/// so addresses stay.
class Segment {
 public:
  /// A new one of `bytes`, whose pages come from NUMA node `near` as long as that has some; which process touches them
  /// first does not matter. A kernel that refuses to be told so costs speed only. Throws System when the memory is not
  /// there.
  explicit Segment(std::size_t bytes, std::optional<int> near = std::nullopt);
  /// Maps one that another process made.
  explicit Segment(UniqueFd fd);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  int fd() const { return fd_.get(); }
  /// Commits the memory of a range, which may reach past the end; throws System, saying how much is missing, instead
  /// of failing at first touch.
  void commit(std::size_t offset, std::size_t bytes);
  /// Gives the pages of a range back to the system; it reads as zeros afterwards.
  void discard(std::size_t offset, std::size_t bytes) noexcept;
  std::size_t bytes() const { return bytes_; }
  /// True if a range lies in what the maker has committed so far, be it a peer.
  bool has(std::size_t offset, std::size_t bytes) const;

 private:
  void map();
  void prefer_node(int node) noexcept;

  UniqueFd fd_;
  std::atomic<std::size_t> bytes_ = 0;  // ranks that are threads share a segment
  std::size_t reserved_ = 0;
  std::byte* data_ = nullptr;
};

/// Hands out parts of a segment that this process made, first fit, page-aligned. Thread-safe.
class SegmentHeap {
 public:
  /// Parts come from `begin` on.
  SegmentHeap(Segment& segment, std::size_t begin) : segment_(segment), end_(begin) {}

  /// Offset of `bytes` zeroed bytes. Throws System when memory is short.
  std::size_t allocate(std::size_t bytes);
  void free(std::size_t offset, std::size_t bytes) noexcept;

 private:
  Segment& segment_;
  std::mutex mutex_;
  std::size_t end_;
  std::map<std::size_t, std::size_t> holes_;  // offset -> bytes, none adjacent
};

}  // namespace paceline
