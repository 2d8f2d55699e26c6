#include "paceline/train/ddp/bucket_allocator.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "paceline/train/ddp/backward_watch.h"
#include "paceline/train/torch_compat.h"

namespace paceline {
namespace {

/// In front of libtorch's allocator. What is lent is known by its address, so that a deleter needs nothing else, as
/// libtorch's raw_allocate() demands.
class LendingAllocator final : public compat::Allocator {
 public:
  explicit LendingAllocator(at::Allocator* behind) : behind_(behind) {}

  at::DataPtr obtain(std::size_t bytes) const override {
    // A thread allocates to its very end.
    auto* const lenders = ThreadList<const MemoryLender>::here_or_null();
    if (lenders != nullptr && BackwardWatch::inside_node()) {
      std::shared_ptr<std::byte> memory;
      lenders->visit([&](const MemoryLender& lender) {
        memory = lender.lend(bytes);
        return memory != nullptr;
      });
      if (memory) return note(std::move(memory));
    }
    return behind_->allocate(bytes);
  }

  at::DeleterFnPtr raw_deleter() const override { return behind_->raw_deleter() == nullptr ? nullptr : &give_back; }

 private:
  at::DataPtr note(std::shared_ptr<std::byte> memory) const {
    std::byte* const data = memory.get();
    const std::lock_guard lock(mutex_);
    lent_.push_back(std::move(memory));
    return {data, data, &give_back, at::DeviceType::CPU};
  }

  static void give_back(void* data);

  at::Allocator* const behind_;
  mutable std::mutex mutex_;                              // a storage may die on any thread
  mutable std::vector<std::shared_ptr<std::byte>> lent_;  // few
};

// Lives as long as the process: storages may die after everything else.
LendingAllocator& the_allocator() {
  static auto* const allocator = [] {
    auto* made = new LendingAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(made);
    return made;
  }();
  return *allocator;
}

void LendingAllocator::give_back(void* data) {
  const LendingAllocator& self = the_allocator();
  std::shared_ptr<std::byte> memory;  // dies after the lock
  {
    const std::lock_guard lock(self.mutex_);
    const auto found =
        std::find_if(self.lent_.begin(), self.lent_.end(), [&](const auto& m) { return m.get() == data; });
    if (found != self.lent_.end()) {
      memory = std::move(*found);
      self.lent_.erase(found);
    }
  }
  if (!memory) self.behind_->raw_deleter()(data);
}

}  // namespace

MemoryLender::MemoryLender(std::function<std::shared_ptr<std::byte>(std::size_t bytes)> lend)
    : lend_(std::move(lend)), list_(ThreadList<const MemoryLender>::here()) {
  the_allocator();
  list_->add(*this);
}

MemoryLender::~MemoryLender() { list_->remove(*this); }

}  // namespace paceline
