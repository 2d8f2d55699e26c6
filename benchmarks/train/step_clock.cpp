#include "step_clock.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace paceline_benchmark {

StepOptions parse_step_options(int argc, char** argv, const std::string& program) {
  StepOptions options;
  CLI::App app("Times training steps; benchmarks/train/run starts it.", program);
  app.add_option("--model", options.model, "cnn, mlp or resnet18")->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Images per step and rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--warmup", options.warmup, "Steps before timing starts")->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "Steps to time")->check(CLI::PositiveNumber);
  app.add_option("--out", options.out, "File for the times, without its rank")->required();
  app.add_flag("--wait-for-go", options.wait_for_go, "Say \"ready\" after warm-up and wait for a line on stdin");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int kBadUse = 64;  // EX_USAGE of sysexits.h
    const int code = app.exit(error);
    std::exit(code == 0 ? 0 : kBadUse);
  }
  return options;
}

StepClock::StepClock(StepOptions options, int rank) : options_(std::move(options)), rank_(rank) {
  step_s_.reserve(options_.steps);
}

bool StepClock::next() {
  auto now = std::chrono::steady_clock::now();
  ++turns_;
  if (turns_ < options_.warmup) return true;
  if (turns_ == options_.warmup) {
    if (options_.wait_for_go) {
      std::cout << "ready" << std::endl;
      std::string go;
      if (!std::getline(std::cin, go)) throw std::runtime_error("stdin ended before it said to go");
      now = std::chrono::steady_clock::now();
    }
  } else {
    step_s_.push_back(std::chrono::duration<double>(now - last_).count());
  }
  last_ = now;
  if (step_s_.size() < options_.steps) return true;
  write();
  return false;
}

void StepClock::write() const {
  const auto path = options_.out + "." + std::to_string(rank_);
  std::ofstream file(path);
  file << nlohmann::json{{"step_s", step_s_}} << '\n';
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace paceline_benchmark
