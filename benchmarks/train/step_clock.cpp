#include "step_clock.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

namespace paceline_benchmark {

StepOptions parse_step_options(int argc, char** argv, const std::string& program) {
  StepOptions options;
  CLI::App app("Times training steps; benchmarks/train/run starts it.", program);
  app.add_option("--model", options.model, "cnn, mlp or resnet18")->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Images per step and rank")
      ->check(CLI::PositiveNumber)
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

StepClock::StepClock(const std::string& channel) : channel_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (channel.size() >= sizeof(address.sun_path)) throw std::runtime_error("the channel's name is too long");
  std::memcpy(address.sun_path, channel.c_str(), channel.size() + 1);
  if (::connect(channel_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot connect to " + channel);
  }
  send("ready");
}

StepClock::~StepClock() { ::close(channel_); }

bool StepClock::next() {
  const auto now = std::chrono::steady_clock::now();
  if (burst_ > 0) {
    turn_s_.push_back(std::chrono::duration<double>(now - last_).count());
    last_ = now;
    if (turn_s_.size() < burst_) return true;
    send(nlohmann::json(turn_s_).dump());
  }
  burst_ = receive_burst();
  turn_s_.clear();
  turn_s_.reserve(burst_);
  last_ = std::chrono::steady_clock::now();
  return burst_ > 0;
}

void StepClock::send(const std::string& message) const {
  if (::send(channel_, message.data(), message.size(), MSG_NOSIGNAL) < 0) {
    throw std::system_error(errno, std::generic_category(), "cannot answer benchmarks/train/run");
  }
}

/// 0 at the end.
std::size_t StepClock::receive_burst() const {
  std::array<char, 64> buffer{};
  ssize_t size = 0;
  do size = ::recv(channel_, buffer.data(), buffer.size(), 0);
  while (size < 0 && errno == EINTR);
  if (size < 0) throw std::system_error(errno, std::generic_category(), "cannot hear benchmarks/train/run");
  const std::string message(buffer.data(), static_cast<std::size_t>(size));
  if (message == "end") return 0;
  const std::string burst = "burst ";
  if (!message.starts_with(burst)) throw std::runtime_error("benchmarks/train/run went away");
  return std::stoul(message.substr(burst.size()));
}

}  // namespace paceline_benchmark
