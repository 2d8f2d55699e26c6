#include "paceline/train/ddp/backward_watch.h"

#include <ATen/record_function.h>

#include <cstddef>
#include <memory>
#include <utility>

namespace paceline {
namespace {

struct OfThread {
  bool is_called = false;
  at::CallbackHandle handle{};
  std::size_t nodes = 0;  // that run now, each inside the one before
};
thread_local OfThread of_thread;

std::unique_ptr<at::ObserverContext> node_begins(const at::RecordFunction&) {
  const bool outermost = of_thread.nodes++ == 0;
  if (auto* const watches = ThreadList<BackwardWatch>::here_or_null()) {
    watches->visit([outermost](BackwardWatch& watch) {
      watch.see_node(outermost);
      return false;
    });
  }
  return nullptr;
}

void node_ends(const at::RecordFunction&, at::ObserverContext*) { --of_thread.nodes; }

}  // namespace

BackwardWatch::BackwardWatch(Timeline& timeline, std::function<void()> on_node)
    : timeline_(timeline), on_node_(std::move(on_node)), list_(ThreadList<BackwardWatch>::here()) {
  list_->add(*this);
  if (of_thread.is_called) return;
  of_thread.handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&node_begins, &node_ends).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  of_thread.is_called = true;
}

// Only its own thread can tell libtorch to call no longer; destroyed on another one, it leaves an empty list.
BackwardWatch::~BackwardWatch() {
  if (!list_->remove(*this) || list_.get() != ThreadList<BackwardWatch>::here_or_null()) return;
  at::removeCallback(of_thread.handle);
  of_thread.is_called = false;
}

bool BackwardWatch::inside_node() { return of_thread.nodes > 0; }

void BackwardWatch::see_node(bool outermost) {
  if (timeline_.phase() == Phase::Forward) timeline_.enter(Phase::Backward);
  if (outermost) on_node_();
}

}  // namespace paceline
