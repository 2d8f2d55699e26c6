#include "paceline/comm/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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

// Address space, not memory: no segment can outgrow the machine.
std::size_t reserve_bytes() { return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes(); }

}  // namespace

Segment::Segment(std::size_t bytes, std::optional<int> near)
    : fd_(memfd_create("paceline", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  if (!fd_) throw system_error("cannot create shared memory (memfd_create)", errno);
  map();
  if (near) prefer_node(*near);
  commit(0, bytes);
  // A peer cannot make our pages vanish (SIGBUS) by shrinking the file.
  if (fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) throw system_error("cannot seal shared memory", errno);
}

Segment::Segment(UniqueFd fd) : fd_(std::move(fd)) {
  struct stat status {};
  if (fstat(fd_.get(), &status) != 0) throw system_error("cannot examine a peer's shared memory", errno);
  bytes_ = static_cast<std::size_t>(status.st_size);
  map();
}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, reserved_);
}

void Segment::map() {
  reserved_ = reserve_bytes();
  void* address = mmap(nullptr, reserved_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_.get(), 0);
  if (address == MAP_FAILED) {
    throw system_error(
        fmt::format("cannot reserve {} MiB of address space for shared memory (is there a limit, ulimit -v?)",
                    reserved_ >> 20),
        errno);
  }
  data_ = static_cast<std::byte*>(address);
}

// Holds for the file, so also for pages that commit() makes later and for what peers touch.
void Segment::prefer_node(int node) noexcept {
  constexpr int kMostNodes = 1024;  // as the kernel has it
  constexpr int kWordBits = 8 * sizeof(unsigned long);
  if (node >= kMostNodes) return;
  std::array<unsigned long, kMostNodes / kWordBits> nodes{};
  nodes[static_cast<std::size_t>(node / kWordBits)] = 1UL << (node % kWordBits);
  (void)syscall(SYS_mbind, data_, reserved_, MPOL_PREFERRED, nodes.data(), kMostNodes + 1, 0);
}

void Segment::commit(std::size_t offset, std::size_t bytes) {
  bytes = whole_pages(bytes);
  int error = offset + bytes > reserved_ ? ENOMEM : 0;
  while (error == 0 && fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) error = errno;
  }
  if (error != 0) {
    throw system_error(fmt::format("cannot get {} MiB more of shared memory ({} MiB in use); free memory or raise the "
                                   "container's limit",
                                   bytes >> 20, bytes_.load() >> 20),
                       error);
  }
  bytes_ = std::max(bytes_.load(), offset + bytes);
}

bool Segment::has(std::size_t offset, std::size_t bytes) const {
  std::size_t there = bytes_;
  struct stat status {};
  if ((offset > there || bytes > there - offset) && fstat(fd_.get(), &status) == 0) {
    there = static_cast<std::size_t>(status.st_size);
  }
  return offset <= there && bytes <= there - offset;
}

void Segment::discard(std::size_t offset, std::size_t bytes) noexcept {
  // Failing to give memory back early is harmless: the pages go with the segment. The next owner zeroes them.
  (void)fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes));
}

std::size_t SegmentHeap::allocate(std::size_t bytes) {
  bytes = whole_pages(std::max<std::size_t>(bytes, 1));
  std::lock_guard lock(mutex_);
  const auto hole = std::find_if(holes_.begin(), holes_.end(), [&](const auto& h) { return h.second >= bytes; });
  const std::size_t offset = hole != holes_.end() ? hole->first : end_;
  segment_.commit(offset, bytes);  // may throw: nothing is taken before
  if (hole != holes_.end()) {
    const std::size_t rest = hole->second - bytes;
    holes_.erase(hole);
    if (rest > 0) holes_.emplace(offset + bytes, rest);
  } else {
    end_ += bytes;
  }
  std::fill_n(segment_.data() + offset, bytes, std::byte{0});  // also faults the pages in
  return offset;
}

void SegmentHeap::free(std::size_t offset, std::size_t bytes) noexcept {
  bytes = whole_pages(std::max<std::size_t>(bytes, 1));
  std::lock_guard lock(mutex_);
  segment_.discard(offset, bytes);
  auto next = holes_.lower_bound(offset);
  if (next != holes_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = holes_.erase(next);
  }
  if (next != holes_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return;
    }
  }
  holes_.emplace(offset, bytes);
}

}  // namespace paceline
