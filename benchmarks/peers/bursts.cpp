#include "bursts.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace paceline_benchmark {
namespace {

constexpr std::size_t kPeriod = 1000;  // values small enough for sums that are exact

float known(std::size_t i, int rank) { return static_cast<float>(i % kPeriod + static_cast<std::size_t>(rank)); }

}  // namespace

PeerOptions parse_peer_options(int argc, char** argv, const std::string& program) {
  PeerOptions options;
  CLI::App app("Times all-reduces of floats in place; benchmarks/peers/run starts it.", program);
  app.add_option("--channel", options.channel, "Unix socket that says what to time")->required();
  app.add_option("--max-bytes", options.max_bytes, "The largest size that will be asked for")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int kBadUse = 64;  // EX_USAGE of sysexits.h
    const int code = app.exit(error);
    std::exit(code == 0 ? 0 : kBadUse);
  }
  return options;
}

std::optional<Request> next_request(const Channel& channel) {
  const auto message = channel.receive();
  if (message == "end") return std::nullopt;
  std::istringstream words(message);
  std::string verb;
  words >> verb;
  if (verb == "check") {
    Request request;
    words >> request.check_bytes;
    if (words) return request;
  } else if (verb == "burst") {
    Burst burst;
    words >> burst.bytes >> burst.warmup >> burst.samples >> burst.batch;
    if (words) return Request{.burst = burst};
  }
  throw std::runtime_error("not for an all-reduce: " + message);
}

void fill_with_known(std::span<float> data, int rank) {
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = known(i, rank);
}

void check_known_sum(std::span<const float> data, int world_size) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    float sum = 0;
    for (int rank = 0; rank < world_size; ++rank) sum += known(i, rank);
    if (data[i] == sum) continue;
    std::ostringstream text;
    text << "wrong sum: element " << i << " of " << data.size() << " is " << data[i] << " instead of " << sum;
    throw std::runtime_error(text.str());
  }
}

std::string as_json(const std::vector<double>& values) { return nlohmann::json(values).dump(); }

}  // namespace paceline_benchmark
