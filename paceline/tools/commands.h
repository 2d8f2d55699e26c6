#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace paceline::tools {

/// Exit codes of the program itself, after sysexits.h and the shell.
inline constexpr int kExitUsage = 64;
inline constexpr int kExitUnavailable = 69;  ///< A host could not be reached, or was lost.
inline constexpr int kExitInternal = 70;
inline constexpr int kExitOutput = 74;
inline constexpr int kExitMismatch = 78;  ///< Ranks, models or hosts that do not belong together.
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

/// What main() hands to a subcommand beside its options, and gets back.
struct Invocation {
  std::vector<std::string> arguments;     ///< Those of the program, before the first "--".
  std::vector<std::string> after_dashes;  ///< The arguments after the first "--", untouched.
  bool has_dashes = false;
  int exit_code = 0;  ///< The subcommand sets it.
};

// Each adds one subcommand to `app`: its options and a callback that does the work. The callback throws CLI::ParseError
// for bad use and paceline::Error for anything else; main() prints both. `invocation` outlives the app's parsing.
// A new subcommand is a file with such a function, a line here and a line in main().
void add_run_command(CLI::App& app, Invocation& invocation);
void add_bench_command(CLI::App& app, Invocation& invocation);
void add_ps_command(CLI::App& app, Invocation& invocation);

}  // namespace paceline::tools
