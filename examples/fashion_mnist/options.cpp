#include "options.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>

namespace fashion_mnist {
namespace {

constexpr int kBadUse = 64;  // EX_USAGE of sysexits.h

std::string one_line(std::string text) {
  for (auto& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a model on Fashion-MNIST, on as many workers as `paceline run -n N` starts.", "fashion_mnist");
  // The last one wins, so that a script can put a user's options after its own.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  // CLI::PositiveNumber lets NaN and infinity pass.
  const CLI::Validator positive(
      [](std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        return *end == '\0' && std::isfinite(value) && value > 0 ? std::string() : text + " is not above 0";
      },
      "above 0");
  const CLI::Validator not_negative(  // a minus sign would wrap around
      [](const std::string& text) { return text.starts_with('-') ? text + " is below 0" : std::string(); }, "");

  app.add_option("--model", options.model, "What to train")
      ->check(CLI::IsMember({"cnn", "mlp", "resnet18"}))
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "Times to go through the training images")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Stop after this many steps")->check(positive);
  app.add_option("--batch-size", options.batch_size, "Images per step and rank")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option(
         "--lr", options.lr,
         "Learning rate at a batch of 128 over all ranks; it grows in proportion (default: 0.1 for sgd, 0.001 for "
         "adamw)")
      ->check(positive);
  app.add_option("--optimizer", options.optimizer, "sgd has Nesterov momentum 0.9 and weight decay 1e-4")
      ->check(CLI::IsMember({"sgd", "adamw"}))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of initial values, the order of images and dropout")
      ->check(not_negative)
      ->capture_default_str();
  app.add_option("--data", options.data, "Folder of the gzipped IDX files")->capture_default_str();
  app.add_flag("--synthetic", options.synthetic, "Train on random images, for timing; implies --no-eval");
  app.add_flag_callback(
      "--no-eval", [&] { options.evaluate = false; }, "Do not measure the test accuracy");
  app.add_flag("--hash", options.hash, "Print a hash of the final parameters' bits: runs that end alike have the same");
  app.add_option("--report", options.report, "Folder to write report.json to");
  app.add_option("--baseline", options.baseline, "report.json of a run with one worker, to tell the speed-up");
  app.add_option("--bucket-bytes", options.bucket_bytes, "Size of the buckets that gradients travel in")
      ->check(positive)
      ->capture_default_str();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) std::exit(app.exit(error));
    fmt::print(stderr, "fashion_mnist: {}; see --help\n", one_line(error.what()));
    std::exit(kBadUse);
  }
  if (options.lr == 0) options.lr = options.optimizer == "sgd" ? 0.1 : 0.001;
  if (options.synthetic) options.evaluate = false;
  return options;
}

}  // namespace fashion_mnist
