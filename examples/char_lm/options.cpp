#include "options.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace char_lm {
namespace {

constexpr int kBadUse = 64;  // EX_USAGE of sysexits.h

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Trains a small transformer to predict the next character, on as many workers as `paceline run -n N` starts.",
      "char_lm");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const auto count = CLI::Range(std::size_t{1}, std::size_t{1'000'000'000});
  const auto extent = CLI::Range(std::int64_t{1}, std::int64_t{1} << 20);
  app.add_option("--text", options.text, "File to learn from (default: the King James Bible, from Debian's bible-kjv)");
  app.add_option("--steps", options.steps, "Optimizer steps")->check(count)->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Sequences a backward and rank")
      ->check(count)
      ->capture_default_str();
  app.add_option("--accumulate", options.accumulate, "Backwards whose gradients make a step")
      ->check(count)
      ->capture_default_str();
  app.add_option("--clip", options.clip, "Largest norm of the gradient; 0: no limit")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  app.add_option("--lr", options.lr, "Learning rate of AdamW")->check(CLI::Range(1e-9, 1e3))->capture_default_str();
  app.add_option("--context", options.context, "Characters a sequence")->check(extent)->capture_default_str();
  app.add_option("--width", options.width, "Features a character")->check(extent)->capture_default_str();
  app.add_option("--layers", options.layers, "Transformer blocks")->check(extent)->capture_default_str();
  app.add_option("--heads", options.heads, "Attention heads; must divide the width")
      ->check(extent)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of initial values and the order of sequences")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 62))
      ->capture_default_str();
  app.add_option("--checkpoints", options.checkpoints,
                 "Folder to save to, and to go on from where there is something in it");
  app.add_option("--save-every", options.save_every, "Steps between two checkpoints")
      ->check(count)
      ->capture_default_str();
  try {
    app.parse(argc, argv);
    if (options.width % options.heads != 0) throw CLI::ValidationError("--heads", "must divide --width");
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) std::exit(app.exit(error));
    fmt::print(stderr, "char_lm: {}; see --help\n", error.what());
    std::exit(kBadUse);
  }
  return options;
}

}  // namespace char_lm
