#include "paceline/base/origin.h"

#include <pthread.h>

#include <mutex>
#include <utility>
#include <vector>

namespace paceline {

std::atomic<std::uint32_t> Origin::forks_{0};

Origin::Origin() {
  static const int counts = ::pthread_atfork(nullptr, nullptr, [] { forks_.fetch_add(1, std::memory_order_relaxed); });
  (void)counts;
  made_at_ = forks_.load(std::memory_order_relaxed);
}

void never_destroy(std::shared_ptr<void> object) {
  // Still reachable, so that no leak is reported.
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(object));
}

}  // namespace paceline
