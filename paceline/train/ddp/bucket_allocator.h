#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "paceline/train/thread_list.h"

namespace paceline {

/// Lets libtorch compute a gradient in the memory that it is sent from. While it lives, what a node of autograd
/// allocates on this thread comes from `lend`, if that gives memory for so many bytes; else from libtorch's allocator,
/// as if there were no lender. Which of a node's tensors gets it, a gradient or something else of the same size, nobody
/// can know beforehand: the memory is lent until that tensor's storage dies, and the lender must leave it alone until
/// then.
///
/// The first one puts itself in front of the allocator that libtorch has then, for good: with no lender on a thread it
/// passes everything on. An allocator that a program sets later stays in front; then nothing is lent. May be destroyed
/// on any thread.
class MemoryLender {
 public:
  explicit MemoryLender(std::function<std::shared_ptr<std::byte>(std::size_t bytes)> lend);
  ~MemoryLender();
  MemoryLender(const MemoryLender&) = delete;
  MemoryLender& operator=(const MemoryLender&) = delete;

  /// For the allocator.
  std::shared_ptr<std::byte> lend(std::size_t bytes) const { return lend_(bytes); }

 private:
  const std::function<std::shared_ptr<std::byte>(std::size_t bytes)> lend_;
  const std::shared_ptr<ThreadList<const MemoryLender>> list_;
};

}  // namespace paceline
