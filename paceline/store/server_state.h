#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/store/failure.h"

namespace paceline {

/// What a StoreServer holds for its clients, within a limit whatever they send. Knows nothing of threads.
class StoreState {
 public:
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

  /// False when the store is full.
  bool set(std::string_view key, std::string_view value);
  const std::string* find(std::string_view key) const;
  /// The counter's new value; nothing when the store is full.
  std::optional<std::int64_t> add(std::string_view key, std::int64_t delta);

  void report(StoreFailure failure);
  const std::optional<StoreFailure>& first_failure() const { return first_; }
  /// The first report of each rank.
  const std::map<int, StoreFailure>& failures() const { return failures_; }

  /// Notes that the rank's process ended with success, unless it had joined.
  void leave(int rank);
  /// How many ranks have left without joining.
  std::size_t left() const { return left_.size(); }
  /// Fails the job because somebody waits for the first of them. Only while there is no first_failure().
  void fail_left();
  const std::optional<StoreFailure>& left_too_early() const { return left_too_early_; }

 private:
  bool reserve(std::size_t bytes);

  std::map<std::string, std::string, std::less<>> values_;
  std::map<std::string, std::int64_t, std::less<>> counters_;
  std::size_t bytes_ = 0;
  std::optional<StoreFailure> first_;
  std::map<int, StoreFailure> failures_;
  std::vector<int> left_;
  std::optional<StoreFailure> left_too_early_;
};

}  // namespace paceline
