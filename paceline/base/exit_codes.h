#pragma once

namespace paceline {

/// Exit codes of the program itself, after sysexits.h and the shell.
inline constexpr int kExitUsage = 64;
inline constexpr int kExitUnavailable = 69;  ///< A host could not be reached, or was lost.
inline constexpr int kExitInternal = 70;
inline constexpr int kExitOutput = 74;
inline constexpr int kExitMismatch = 78;  ///< Ranks, models or hosts that do not belong together.
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

}  // namespace paceline
