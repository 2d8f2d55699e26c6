#pragma once

#include <cstddef>
#include <vector>

#include "paceline/comm/shm/group.h"

namespace paceline {

/// The memory of a group's ranks, as this rank sees it.
struct ShmView {
  explicit ShmView(const ShmGroup& group) : rank(group.rank) {
    for (const auto& segment : group.segments) {
      segments.push_back(segment.get());
      controls.push_back(reinterpret_cast<RankControl*>(segment->data()));
    }
  }

  int rank;
  std::vector<Segment*> segments;  // by rank
  std::vector<RankControl*> controls;

  int world_size() const { return static_cast<int>(segments.size()); }
  const Slot& slot(int of, std::uint64_t number) const { return controls[of]->slot(number); }
};

}  // namespace paceline
