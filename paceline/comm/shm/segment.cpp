#include "paceline/comm/shm/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <iterator>

#include "paceline/base/error.h"

namespace paceline {
namespace {

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

std::size_t whole_pages(std::size_t bytes) {
  const std::size_t page = page_bytes();
  return (bytes + page - 1) / page * page;
}

// No segment can outgrow the machine.
std::size_t machine_bytes() { return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes(); }

}  // namespace

Segment::Segment(std::size_t bytes, std::optional<int> near)
    : fd_(memfd_create("paceline", MFD_CLOEXEC | MFD_ALLOW_SEALING)), near_(near) {
  if (!fd_) throw system_error("cannot create shared memory (memfd_create)", errno);
  commit(0, bytes);
  // A peer cannot make our pages vanish (SIGBUS) by shrinking the file.
  if (fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) throw system_error("cannot seal shared memory", errno);
}

Segment::Segment(UniqueFd fd) : fd_(std::move(fd)) {
  struct stat status {};
  if (fstat(fd_.get(), &status) != 0) throw system_error("cannot examine a peer's shared memory", errno);
  bytes_ = static_cast<std::size_t>(status.st_size);
}

Segment::~Segment() {
  for (int window = 0; window < kWindows; ++window) {
    std::byte* const base = windows_[static_cast<std::size_t>(window)];
    if (base != nullptr) munmap(base, window_end(window) - window_begin(window));
  }
}

std::byte* Segment::map(int window) const {
  const std::lock_guard lock(mapping_);
  std::atomic<std::byte*>& place = windows_.at(static_cast<std::size_t>(window));
  if (std::byte* const base = place) return base;
  const std::size_t begin = window_begin(window), bytes = window_end(window) - begin;
  void* const address =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_.get(), static_cast<off_t>(begin));
  if (address == MAP_FAILED) {
    throw system_error(
        fmt::format("cannot reserve {} MiB of address space for shared memory (is there a limit, ulimit -v?)",
                    bytes >> 20),
        errno);
  }
  prefer_node(static_cast<std::byte*>(address), bytes);
  place.store(static_cast<std::byte*>(address), std::memory_order_release);
  return place;
}

// Holds for the file, so also for pages that commit() makes later and for what peers touch.
void Segment::prefer_node(std::byte* base, std::size_t bytes) const noexcept {
  constexpr int kMostNodes = 1024;  // as the kernel has it
  constexpr int kWordBits = 8 * sizeof(unsigned long);
  if (!near_ || *near_ >= kMostNodes) return;
  std::array<unsigned long, kMostNodes / kWordBits> nodes{};
  nodes[static_cast<std::size_t>(*near_ / kWordBits)] = 1UL << (*near_ % kWordBits);
  (void)syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, nodes.data(), kMostNodes + 1, 0);
}

Error Segment::short_of(std::size_t bytes, int error) const {
  return system_error(fmt::format("cannot get {} MiB more of shared memory ({} MiB in use); free memory or raise the "
                                  "container's limit",
                                  bytes >> 20, committed_ >> 20),
                      error);
}

void Segment::require(std::size_t bytes) const {
  if (bytes > machine_bytes() - std::min(machine_bytes(), committed_)) throw short_of(bytes, ENOMEM);
}

void Segment::commit(std::size_t offset, std::size_t bytes) {
  bytes = whole_pages(bytes);
  require(bytes);
  (void)at(offset);  // its place in memory policies comes before its pages
  int error = 0;
  while (fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    error = errno;
    break;
  }
  if (error != 0) throw short_of(bytes, error);
  committed_ += bytes;
  bytes_ = std::max(bytes_.load(), offset + bytes);
}

// The maker may have committed more since its segment was mapped here.
bool Segment::has_grown_to(std::size_t end) const {
  struct stat status {};
  return fstat(fd_.get(), &status) == 0 && end <= static_cast<std::size_t>(status.st_size);
}

void Segment::discard(std::size_t offset, std::size_t bytes) noexcept {
  // Failing to give memory back early is harmless: the pages go with the segment. The next owner zeroes them.
  (void)fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes));
  committed_ -= std::min(committed_, bytes);
}

std::size_t SegmentHeap::allocate(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  segment_.require(bytes);
  bytes = whole_pages(std::max<std::size_t>(bytes, 1));
  const auto fits = [&](const auto& hole) { return hole.second >= bytes; };
  auto hole = std::find_if(holes_.begin(), holes_.end(), fits);
  while (hole == holes_.end()) {
    open_window();
    hole = std::find_if(holes_.begin(), holes_.end(), fits);
  }
  const std::size_t offset = hole->first;
  segment_.commit(offset, bytes);  // may throw: nothing is taken before
  const std::size_t rest = hole->second - bytes;
  holes_.erase(hole);
  if (rest > 0) holes_.emplace(offset + bytes, rest);
  std::fill_n(segment_.at(offset), bytes, std::byte{0});  // also faults the pages in
  return offset;
}

void SegmentHeap::open_window() {
  if (windows_ == Segment::kWindows) throw system_error("cannot get more shared memory", ENOMEM);
  const std::size_t begin = windows_ == 0 ? begin_ : Segment::window_begin(windows_) + begin_ % page_bytes();
  holes_.emplace(begin, Segment::window_end(windows_) - begin);
  ++windows_;
}

void SegmentHeap::free(std::size_t offset, std::size_t bytes) noexcept {
  bytes = whole_pages(std::max<std::size_t>(bytes, 1));
  std::lock_guard lock(mutex_);
  segment_.discard(offset, bytes);
  const auto same_window = [&](std::size_t other) { return Segment::window_of(other) == Segment::window_of(offset); };
  auto next = holes_.lower_bound(offset);
  if (next != holes_.end() && next->first == offset + bytes && same_window(next->first)) {
    bytes += next->second;
    next = holes_.erase(next);
  }
  if (next != holes_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset && same_window(previous->first)) {
      previous->second += bytes;
      return;
    }
  }
  holes_.emplace(offset, bytes);
}

}  // namespace paceline
