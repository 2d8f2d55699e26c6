#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace paceline::tools {

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
