#include "paceline/store/exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "paceline/base/error.h"
#include "paceline/store/store.h"

namespace paceline {
namespace {

constexpr Nanoseconds kNowAndThen = std::chrono::milliseconds(20);

/// Nothing if it is not there by then.
std::optional<std::string> look_for(Store& store, const std::string& key, Nanoseconds patience) {
  try {
    return store.get(key, Deadline(patience));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Timeout) throw;
    return std::nullopt;
  }
}

std::optional<std::string> wait_for(Store& store, const std::string& key, Deadline deadline,
                                    const std::function<void()>& meanwhile) {
  for (;;) {
    const Nanoseconds left = std::max(deadline.left(), Nanoseconds(0));
    const bool last = !meanwhile || left <= kNowAndThen;
    if (auto value = look_for(store, key, last ? left : kNowAndThen); value || last) return value;
    meanwhile();
  }
}

}  // namespace

// What stands in the store begins with the number of ranks that its writer was told.
std::vector<std::string> meet(Store& store, const std::string& key, const std::string& name, int rank, int world_size,
                              const std::string& value, Deadline deadline, const std::function<void()>& meanwhile) {
  store.set(fmt::format("{}/{}", key, rank), fmt::format("{} {}", world_size, value));
  std::vector<std::string> values;
  std::vector<int> missing;
  for (int peer = 0; peer < world_size; ++peer) {
    const Deadline patience = missing.empty() ? deadline : Deadline(Nanoseconds(0));
    const auto said = wait_for(store, fmt::format("{}/{}", key, peer), patience, meanwhile);
    if (!said) {
      missing.push_back(peer);
      continue;
    }
    int theirs = 0;
    const char* const end = said->data() + said->size();
    const char* const rest = std::from_chars(said->data(), end, theirs).ptr;
    if (theirs != world_size) {
      throw Error(
          ErrorCode::Mismatch,
          fmt::format("joining '{}': rank {} is one of {} ranks, but rank {} is one of {}; start all workers of "
                      "a job with one launcher",
                      name, rank, world_size, peer, theirs),
          rank, peer);
    }
    values.emplace_back(rest == end ? end : rest + 1, end);
  }
  if (missing.empty()) return values;
  throw Error(Fault::NotAllJoined,
              fmt::format("joining '{}': rank {} of {} did not come within the time limit; were all workers started, "
                          "and do all of them create this communicator?",
                          name, fmt::join(missing, ", "), world_size),
              Error::kNoRank, missing.front());
}

}  // namespace paceline
