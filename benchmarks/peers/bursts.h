#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "channel.h"

namespace paceline_benchmark {

struct PeerOptions {
  std::string channel;        ///< Unix socket that benchmarks/peers/run listens on.
  std::size_t max_bytes = 0;  ///< Size of the buffer that each rank reduces the beginning of.
};

/// Ends the program after --help (0) and bad use (64).
PeerOptions parse_peer_options(int argc, char** argv, const std::string& program);

/// What to time: `samples` times, after `warmup` untimed ones, `batch` calls back to back.
struct Burst {
  std::size_t bytes = 0, warmup = 0, samples = 0, batch = 0;
};

/// One message of benchmarks/peers/run. Without `burst`: sum `check_bytes` once and look at the result.
struct Request {
  std::size_t check_bytes = 0;
  std::optional<Burst> burst;
};

/// Blocks for the next one; empty at the end.
std::optional<Request> next_request(const Channel& channel);

void fill_with_known(std::span<float> data, int rank);
/// Throws unless `data` is the exact sum of what all ranks filled in.
void check_known_sum(std::span<const float> data, int world_size);
std::string as_json(const std::vector<double>& values);

/// Carries out what benchmarks/peers/run asks for, to the end. The same loop for paceline and MPI; gloo_all_reduce.py
/// has it in Python.
///
/// @param all_reduce  Sums a std::span<float> in place.
/// @param barrier     Of the same library, so that all ranks begin a sample at about the same time.
template <class AllReduce, class Barrier>
void serve_bursts(const Channel& channel, std::span<float> data, int rank, int world_size, AllReduce all_reduce,
                  Barrier barrier) {
  channel.send("ready");
  while (const auto request = next_request(channel)) {
    if (!request->burst) {
      const auto part = data.first(request->check_bytes / sizeof(float));
      fill_with_known(part, rank);
      all_reduce(part);
      check_known_sum(part, world_size);
      std::fill(part.begin(), part.end(), 0.0F);  // sums of zeros stay what they are, however many follow
      channel.send("right");
      continue;
    }
    const auto burst = *request->burst;
    const auto part = data.first(burst.bytes / sizeof(float));
    std::vector<double> call_s;
    call_s.reserve(burst.samples);
    for (std::size_t i = 0; i < burst.warmup + burst.samples; ++i) {
      barrier();
      const auto begin = std::chrono::steady_clock::now();
      for (std::size_t call = 0; call < burst.batch; ++call) all_reduce(part);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      if (i >= burst.warmup) call_s.push_back(taken.count() / static_cast<double>(burst.batch));
    }
    channel.send(as_json(call_s));
  }
}

}  // namespace paceline_benchmark
