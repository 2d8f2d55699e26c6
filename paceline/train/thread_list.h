#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

namespace paceline {

/// What objects of one thread are found by from a plain function that libtorch calls on it. Each holds the list that it
/// is in, so that it may be destroyed on another thread, and after its own has ended.
template <class T>
class ThreadList {
 public:
  /// The list of this thread.
  static std::shared_ptr<ThreadList> here() {
    static thread_local Holder holder;
    if (!holder.list) {
      holder.list = std::make_shared<ThreadList>();
      current = holder.list.get();
    }
    return holder.list;
  }
  /// The same where something was added on this thread, else null; and null while the thread ends.
  static ThreadList* here_or_null() { return current; }

  void add(T& object) {
    const std::lock_guard lock(mutex_);
    objects_.push_back(&object);
  }
  /// Blocks while visit() is at it. True if none is left.
  bool remove(T& object) {
    const std::lock_guard lock(mutex_);
    std::erase(objects_, &object);
    return objects_.empty();
  }
  /// Calls `with(object)` for each, the newest first, until one returns true.
  template <class With>
  void visit(With with) {
    const std::lock_guard lock(mutex_);
    for (auto object = objects_.rbegin(); object != objects_.rend(); ++object) {
      if (with(**object)) return;
    }
  }

 private:
  struct Holder {
    std::shared_ptr<ThreadList> list;
    ~Holder() { current = nullptr; }
  };
  static inline thread_local ThreadList* current = nullptr;

  std::mutex mutex_;  // only an object that dies on another thread makes anyone wait
  std::vector<T*> objects_;
};

}  // namespace paceline
