#pragma once

#include <cstdint>
#include <optional>

namespace paceline {

/// The most memory this process has had resident so far, in bytes: VmHWM of /proc/self/status. Pages shared with other
/// processes count in each. Empty where the system does not tell.
std::optional<std::uint64_t> peak_resident_bytes();

}  // namespace paceline
