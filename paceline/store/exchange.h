#pragma once

#include <functional>
#include <string>
#include <vector>

#include "paceline/base/clock.h"

namespace paceline {

class Store;

/// Each rank of a group says something to all others, under `key` in the store: `value` goes in, the values of all
/// ranks come out, in rank order. `name` is the communicator's, for messages. `meanwhile` is called now and then while
/// others are not there yet.
/// Throws Timeout naming all ranks that did not come, Mismatch for one that was told another number of ranks, or the
/// job's failure.
std::vector<std::string> meet(Store& store, const std::string& key, const std::string& name, int rank, int world_size,
                              const std::string& value, Deadline deadline, const std::function<void()>& meanwhile = {});

}  // namespace paceline
