#pragma once

#include <functional>
#include <memory>

#include "paceline/base/timeline.h"
#include "paceline/train/thread_list.h"

namespace paceline {

/// Sees autograd run nodes on this thread: moves a timeline from Forward to Backward at the first one, and calls
/// `on_node` before each that does not run inside another node, as re-entrant checkpointing does. What `on_node` queues
/// for the end of backward is called at the end of the outermost one. Libtorch calls a plain function there, so watches
/// are found through a list of the thread. May be destroyed on any thread, but not while a backward calls it.
class BackwardWatch {
 public:
  BackwardWatch(Timeline& timeline, std::function<void()> on_node);
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  /// Whether a node runs now. In a hook, which comes after its own node: whether its backward runs inside one of
  /// another.
  static bool inside_node();

  /// For the thread-local function.
  void see_node(bool outermost);

 private:
  Timeline& timeline_;
  std::function<void()> on_node_;
  const std::shared_ptr<ThreadList<BackwardWatch>> list_;
};

}  // namespace paceline
