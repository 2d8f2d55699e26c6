#pragma once

#include <atomic>
#include <cstdint>

#include "paceline/base/clock.h"

namespace paceline {

/// Sleeps while `word` is `expected`, at most for `limit`. May return early. Works across processes that share the
/// memory.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Nanoseconds limit);

/// Wakes all that sleep on `word`.
void futex_wake(const std::atomic<std::uint32_t>& word);

}  // namespace paceline
