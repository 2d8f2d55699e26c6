#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>

#include "paceline/store/failure.h"
#include "paceline/store/store.h"

namespace paceline {
namespace {

class MemoryStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value) override {
    {
      const std::lock_guard lock(mutex_);
      throw_if_failed();
      values_.insert_or_assign(std::string(key), std::string(value));
    }
    changed_.notify_all();
  }

  std::string get(std::string_view key, Deadline deadline) override {
    const Nanoseconds began = now();
    std::unique_lock lock(mutex_);
    while (true) {
      if (const auto found = values_.find(key); found != values_.end()) return found->second;
      throw_if_failed();
      const Nanoseconds left = deadline.left();
      if (left <= Nanoseconds::zero()) throw store_timeout(key, now() - began);
      changed_.wait_for(lock, left);
    }
  }

  std::int64_t add(std::string_view key, std::int64_t delta) override {
    const std::lock_guard lock(mutex_);
    throw_if_failed();
    return counters_[std::string(key)] += delta;
  }

  void fail(int rank, const Error& why) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = StoreFailure{rank, why.label(), why.message(), why.cause()};
    }
    changed_.notify_all();
  }

 private:
  void throw_if_failed() const {
    if (failure_) throw to_error(*failure_);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
  std::map<std::string, std::int64_t> counters_;
  std::optional<StoreFailure> failure_;
};

}  // namespace

std::shared_ptr<Store> make_memory_store() { return std::make_shared<MemoryStore>(); }

}  // namespace paceline
