#pragma once

#include <type_traits>
#include <utility>

#include "paceline/train/data_parallel.h"

namespace paceline {

/// The elements of `range` on this rank for a training loop in which ranks may have different numbers of them: the loop
/// ends where options.uneven says, or after a step in which a rank asked to stop, with join() done.
///
///     for (auto& batch : paceline::steps(ddp, loader.epoch())) { ... }
template <class Range>
class Steps {
 public:
  Steps(DistributedDataParallel& ddp, Range&& range) : ddp_(ddp), range_(std::forward<Range>(range)) {}

  class End {};
  class Iterator {
   public:
    explicit Iterator(Steps& steps) : steps_(steps), at_(steps.range_.begin()) { look(); }
    decltype(auto) operator*() { return *at_; }
    Iterator& operator++() {
      if (steps_.ddp_.stop_agreed()) {
        finish();
      } else {
        ++at_;
        look();
      }
      return *this;
    }
    bool operator!=(const End&) const { return !done_; }

   private:
    void look() {
      if (!(at_ != steps_.range_.end())) finish();
    }
    void finish() {
      steps_.ddp_.join();
      done_ = true;
    }

    Steps& steps_;
    decltype(std::declval<std::remove_reference_t<Range>&>().begin()) at_;
    bool done_ = false;
  };
  Iterator begin() { return Iterator(*this); }
  End end() { return {}; }

 private:
  DistributedDataParallel& ddp_;
  Range range_;
};

template <class Range>
Steps<Range> steps(DistributedDataParallel& ddp, Range&& range) {
  return Steps<Range>(ddp, std::forward<Range>(range));
}

}  // namespace paceline
