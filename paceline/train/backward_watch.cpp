#include "paceline/train/backward_watch.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace paceline {
namespace {

struct OfThread {
  std::vector<BackwardWatch*> watches;
  at::CallbackHandle handle{};
  std::size_t nodes = 0;  // that run now, each inside the one before
};
thread_local OfThread of_thread;

std::unique_ptr<at::ObserverContext> node_begins(const at::RecordFunction&) {
  const bool outermost = of_thread.nodes++ == 0;
  for (BackwardWatch* watch : of_thread.watches) watch->see_node(outermost);
  return nullptr;
}

void node_ends(const at::RecordFunction&, at::ObserverContext*) { --of_thread.nodes; }

}  // namespace

BackwardWatch::BackwardWatch(Timeline& timeline, std::function<void()> on_node)
    : timeline_(timeline), on_node_(std::move(on_node)) {
  if (of_thread.watches.empty()) {
    of_thread.handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&node_begins, &node_ends).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  }
  of_thread.watches.push_back(this);
}

BackwardWatch::~BackwardWatch() {
  std::erase(of_thread.watches, this);
  if (of_thread.watches.empty()) at::removeCallback(of_thread.handle);
}

bool BackwardWatch::inside_node() { return of_thread.nodes > 0; }

void BackwardWatch::see_node(bool outermost) {
  if (timeline_.phase() == Phase::Forward) timeline_.enter(Phase::Backward);
  if (outermost) on_node_();
}

}  // namespace paceline
