#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "paceline/base/error.h"
#include "paceline/base/unique_fd.h"

namespace paceline {

/// Memory that other processes of this host can map: an anonymous file (memfd) without a name in the file system, gone
/// with its last user. It is mapped in windows, each as large as all before it together, when something in them is
/// first used: so addresses stay, and take no more than some times what is used of each rank's memory. A part of it
/// that is used as a whole lies in one window.
class Segment {
 public:
  static constexpr std::size_t kFirstWindow = std::size_t{16} << 20;
  static constexpr int kWindows = 24;  // up to 2^47 bytes, as much as addresses reach
  static int window_of(std::size_t offset) { return std::bit_width(offset / kFirstWindow); }
  static std::size_t window_begin(int window) { return window == 0 ? 0 : kFirstWindow << (window - 1); }
  static std::size_t window_end(int window) { return kFirstWindow << window; }

  /// A new one of `bytes`, whose pages come from NUMA node `near` as long as that has some; which process touches them
  /// first does not matter. A kernel that refuses to be told so costs speed only. Throws System when the memory is not
  /// there.
  explicit Segment(std::size_t bytes, std::optional<int> near = std::nullopt);
  /// Maps one that another process made.
  explicit Segment(UniqueFd fd);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  /// The address of what lies at an offset. Throws System where address space is short. From any thread.
  std::byte* at(std::size_t offset) const {
    const int window = window_of(offset);
    std::byte* base = windows_[static_cast<std::size_t>(window)].load(std::memory_order_acquire);
    if (base == nullptr) base = map(window);
    return base + (offset - window_begin(window));
  }
  std::byte* data() const { return at(0); }
  /// Where in it an address lies, if it does.
  std::optional<std::size_t> offset_of(const std::byte* address) const {
    const auto place = reinterpret_cast<std::uintptr_t>(address);
    const int last = std::min(kWindows - 1, window_of(bytes_.load(std::memory_order_relaxed)));
    for (int window = 0; window <= last; ++window) {
      const auto base =
          reinterpret_cast<std::uintptr_t>(windows_[static_cast<std::size_t>(window)].load(std::memory_order_acquire));
      const std::size_t begin = window_begin(window);
      if (base != 0 && place >= base && place - base < window_end(window) - begin) return begin + (place - base);
    }
    return std::nullopt;
  }
  int fd() const { return fd_.get(); }
  /// Commits the memory of a range, which may reach past the end; throws System, saying how much is missing, instead
  /// of failing at first touch.
  void commit(std::size_t offset, std::size_t bytes);
  /// Throws as commit() does if the machine has not so much memory beside what is committed.
  void require(std::size_t bytes) const;
  /// Gives the pages of a range back to the system; it reads as zeros afterwards.
  void discard(std::size_t offset, std::size_t bytes) noexcept;
  std::size_t bytes() const { return bytes_; }
  /// True if a range lies in one window, and in what the maker has committed so far, be it a peer.
  bool has(std::size_t offset, std::size_t bytes) const {
    if (offset >= window_end(kWindows - 1)) return false;
    if (bytes > window_end(window_of(offset)) - offset) return false;
    return offset + bytes <= bytes_.load(std::memory_order_relaxed) || has_grown_to(offset + bytes);
  }

 private:
  std::byte* map(int window) const;
  bool has_grown_to(std::size_t end) const;
  void prefer_node(std::byte* base, std::size_t bytes) const noexcept;
  Error short_of(std::size_t bytes, int error) const;

  UniqueFd fd_;
  std::optional<int> near_;
  std::atomic<std::size_t> bytes_ = 0;  // ranks that are threads share a segment
  std::size_t committed_ = 0;           // less than that, with what was given back or lies between
  mutable std::mutex mapping_;
  mutable std::array<std::atomic<std::byte*>, kWindows> windows_{};
};

/// Hands out parts of a segment that this process made, first fit, whole pages. Thread-safe.
class SegmentHeap {
 public:
  /// Parts come from `begin` on, and in each window lie as in the first one to a page's beginning.
  SegmentHeap(Segment& segment, std::size_t begin) : segment_(segment), begin_(begin) {}

  /// Offset of `bytes` zeroed bytes. Throws System when memory is short.
  std::size_t allocate(std::size_t bytes);
  void free(std::size_t offset, std::size_t bytes) noexcept;

 private:
  void open_window();

  Segment& segment_;
  const std::size_t begin_;
  std::mutex mutex_;
  int windows_ = 0;                           // that holes were made of
  std::map<std::size_t, std::size_t> holes_;  // offset -> bytes, none adjacent in a window
};

}  // namespace paceline
