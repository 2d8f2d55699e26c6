#include "paceline/comm/store_meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/base/error.h"
#include "paceline/comm/store.h"

namespace paceline {

std::vector<std::string> meet(Store& store, const std::string& key, const std::string& name, int rank, int world_size,
                              const std::string& value, Deadline deadline) {
  store.set(fmt::format("{}/{}", key, rank), value);
  std::vector<std::string> values;
  std::vector<int> missing;
  for (int peer = 0; peer < world_size; ++peer) {
    try {
      const Deadline patience = missing.empty() ? deadline : Deadline(Nanoseconds(0));
      values.push_back(store.get(fmt::format("{}/{}", key, peer), patience));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Timeout) throw;
      missing.push_back(peer);
    }
  }
  if (missing.empty()) return values;
  throw Error(Fault::NotAllJoined,
              fmt::format("joining '{}': rank {} of {} did not come within the time limit; were all workers started, "
                          "and do all of them create this communicator?",
                          name, fmt::join(missing, ", "), world_size),
              Error::kNoRank, missing.front());
}

}  // namespace paceline
