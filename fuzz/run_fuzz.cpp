// The options of `paceline run`, a word a line. Nothing is ever started: PATH leads nowhere, and no word has a slash.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <vector>

#include "fuzz.h"
#include "paceline/base/exit_codes.h"
#include "paceline/tools/commands.h"

using namespace paceline;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  ::setenv("PATH", "/nonexistent", 1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.find('/') != std::string_view::npos || text.find('\0') != std::string_view::npos) return 0;
  tools::Invocation invocation;
  std::vector<std::string> words{"run"};
  while (!text.empty()) {
    const auto word = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    words.emplace_back(word);
  }
  invocation.arguments = words;
  invocation.has_dashes = true;
  invocation.after_dashes = {"no-such-program"};
  std::reverse(words.begin(), words.end());
  CLI::App app("", "paceline");
  app.require_subcommand(1);
  tools::add_run_command(app, invocation);
  try {
    app.parse(words);
    FUZZ_CHECK(invocation.exit_code == kExitNotFound);  // all options are good, and there is no such program
  } catch (const CLI::ParseError&) {
  }
  return 0;
}
