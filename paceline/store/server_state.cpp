#include "paceline/store/server_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace paceline {
namespace {

constexpr std::size_t kEntryBytes = 128;  // what a key costs beside its bytes
constexpr std::size_t kMaxCodeBytes = 64;
constexpr std::size_t kMaxReportBytes = std::size_t{16} << 10;

}  // namespace

bool StoreState::set(std::string_view key, std::string_view value) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    if (!reserve(key.size() + value.size() + kEntryBytes)) return false;
    values_.emplace(key, value);
    return true;
  }
  const std::size_t before = found->second.size();
  if (value.size() > before && !reserve(value.size() - before)) return false;
  if (value.size() < before) bytes_ -= before - value.size();
  found->second = value;
  return true;
}

const std::string* StoreState::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::optional<std::int64_t> StoreState::add(std::string_view key, std::int64_t delta) {
  auto counter = counters_.find(key);
  if (counter == counters_.end()) {
    if (!reserve(key.size() + kEntryBytes)) return std::nullopt;
    counter = counters_.emplace(key, 0).first;
  }
  // Unsigned, since a client's number may overflow it.
  const std::uint64_t sum = static_cast<std::uint64_t>(counter->second) + static_cast<std::uint64_t>(delta);
  counter->second = static_cast<std::int64_t>(sum);
  return counter->second;
}

void StoreState::report(StoreFailure failure) {
  failure.code.resize(std::min(failure.code.size(), kMaxCodeBytes));
  failure.message.resize(std::min(failure.message.size(), kMaxReportBytes));
  if (!first_) first_ = failure;
  // The first report has to get through; later ones only serve the launcher's summary.
  if (!failures_.contains(failure.rank) && reserve(kMaxReportBytes)) {
    failures_.emplace(failure.rank, std::move(failure));
  }
}

void StoreState::leave(int rank) {
  if (find(fmt::format("joined/{}", rank)) == nullptr) left_.push_back(rank);
}

void StoreState::fail_left() {
  const int rank = left_.front();
  report({rank, label_of(Fault::NeverJoined),
          fmt::format("rank {} exited with code 0 before it joined the job, and the others wait for it; every rank has "
                      "to reach Comm::from_env()",
                      rank)});
  left_too_early_ = first_;
}

bool StoreState::reserve(std::size_t bytes) {
  if (bytes > kMaxBytes - bytes_) return false;
  bytes_ += bytes;
  return true;
}

}  // namespace paceline
