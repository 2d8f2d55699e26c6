#include "step_clock.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace paceline_benchmark {

StepOptions parse_step_options(int argc, char** argv, const std::string& program) {
  StepOptions options;
  CLI::App app("Times training steps; benchmarks/train/run starts it.", program);
  app.add_option("--model", options.model, "cnn, mlp or resnet18")->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Images per step and rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--bucket-bytes", options.bucket_bytes, "Of paceline: 1073741824 for all in one, after the backward")
      ->capture_default_str();
  app.add_option("--channel", options.channel, "Unix socket that says when to run how many steps")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int kBadUse = 64;  // EX_USAGE of sysexits.h
    const int code = app.exit(error);
    std::exit(code == 0 ? 0 : kBadUse);
  }
  return options;
}

StepClock::StepClock(const std::string& channel) : channel_(channel) { channel_.send("ready"); }

bool StepClock::next() {
  const auto now = std::chrono::steady_clock::now();
  if (burst_ > 0) {
    turn_s_.push_back(std::chrono::duration<double>(now - last_).count());
    last_ = now;
    if (turn_s_.size() < burst_) return true;
    channel_.send(nlohmann::json(turn_s_).dump());
  }
  burst_ = receive_burst();
  turn_s_.clear();
  turn_s_.reserve(burst_);
  last_ = std::chrono::steady_clock::now();
  return burst_ > 0;
}

/// 0 at the end.
std::size_t StepClock::receive_burst() const {
  const auto message = channel_.receive();
  if (message == "end") return 0;
  const std::string burst = "burst ";
  if (!message.starts_with(burst)) throw std::runtime_error("not for a training loop: " + message);
  return std::stoul(message.substr(burst.size()));
}

}  // namespace paceline_benchmark
