#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "paceline/base/error.h"
#include "paceline/base/exit_codes.h"
#include "paceline/tools/commands.h"

namespace {

constexpr const char* kDescription =
    "Data-parallel training for libtorch: start jobs, see why they take the time they take.";

constexpr const char* kFooter =
    "Try:\n"
    "  paceline run -n 4 -- ./my_program     start four workers of a program on this machine\n"
    "  paceline bench all_reduce -n 4        how fast four workers reduce, and how near the limit that is\n"
    "  paceline ps                           the jobs that are running: where each rank is, what it waits for\n"
    "  paceline COMMAND --help               what a command does, with examples\n";

}  // namespace

int main(int argc, char** argv) {
  using namespace paceline;
  using namespace paceline::tools;
  Invocation invocation;
  // What follows "--" belongs to another program, so the parser never sees it.
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (const auto dashes = std::find(arguments.begin(), arguments.end(), "--"); dashes != arguments.end()) {
    invocation.has_dashes = true;
    invocation.after_dashes.assign(dashes + 1, arguments.end());
    arguments.erase(dashes, arguments.end());
  }
  invocation.arguments = arguments;
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them

  CLI::App app(kDescription, "paceline");
  app.set_version_flag("--version", "paceline " PACELINE_VERSION);
  app.footer(kFooter);
  app.require_subcommand(1);
  add_run_command(app, invocation);
  add_bench_command(app, invocation);
  add_ps_command(app, invocation);
  try {
    const std::string first = arguments.empty() ? "" : arguments.back();
    const auto is_first = [&](const CLI::App* command) { return command->check_name(first); };
    if (!first.empty() && first.front() != '-' && app.get_subcommands(is_first).empty()) {
      throw CLI::ValidationError(fmt::format("there is no command \"{}\"", first));
    }
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const auto used = app.get_subcommands();
    const std::string command = used.empty() ? "paceline" : "paceline " + used.front()->get_name();
    fmt::print(stderr, "{}: {} (see {} --help)\n", command, error.what(), command);
    return kExitUsage;
  } catch (const std::exception& error) {
    fmt::print(stderr, "paceline: {}\n", error.what());
    return kExitInternal;
  }
  return invocation.exit_code;
}
