#include "paceline/train/backward_watch.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace paceline {
namespace {

thread_local std::vector<Timeline*> watched;

std::unique_ptr<at::ObserverContext> on_node(const at::RecordFunction&) {
  for (Timeline* timeline : watched) {
    if (timeline->phase() == Phase::Forward) timeline->enter(Phase::Backward);
  }
  return nullptr;
}

}  // namespace

BackwardWatch::BackwardWatch(Timeline& timeline)
    : timeline_(timeline),
      handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&on_node).scopes({at::RecordScope::BACKWARD_FUNCTION}))) {
  watched.push_back(&timeline);
}

BackwardWatch::~BackwardWatch() {
  at::removeCallback(handle_);
  watched.erase(std::find(watched.begin(), watched.end(), &timeline_));
}

}  // namespace paceline
