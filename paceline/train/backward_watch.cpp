#include "paceline/train/backward_watch.h"

#include <ATen/record_function.h>

#include <memory>

namespace paceline {
namespace {

thread_local Timeline* watched = nullptr;

std::unique_ptr<at::ObserverContext> on_node(const at::RecordFunction&) {
  if (watched != nullptr && watched->phase() == Phase::Forward) watched->enter(Phase::Backward);
  return nullptr;
}

}  // namespace

BackwardWatch::BackwardWatch(Timeline& timeline)
    : before_(watched),
      handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&on_node).scopes({at::RecordScope::BACKWARD_FUNCTION}))) {
  watched = &timeline;
}

BackwardWatch::~BackwardWatch() {
  at::removeCallback(handle_);
  watched = before_;
}

}  // namespace paceline
