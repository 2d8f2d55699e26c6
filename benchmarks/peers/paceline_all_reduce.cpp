// What benchmarks/peers/run times of paceline: Comm::all_reduce on memory of Comm::allocate.
#include <exception>
#include <iostream>
#include <optional>

#include "bursts.h"
#include "paceline/comm/comm.h"

using namespace paceline_benchmark;

int main(int argc, char** argv) {
  const auto options = parse_peer_options(argc, argv, "paceline_all_reduce");
  std::optional<paceline::Comm> comm;
  try {
    comm = paceline::Comm::from_env();
    const auto buffer = comm->allocate(options.max_bytes);
    const std::span data(reinterpret_cast<float*>(buffer.data()), options.max_bytes / sizeof(float));
    const Channel channel(options.channel);
    serve_bursts(
        channel, data, comm->rank(), comm->world_size(), [&](std::span<float> part) { comm->all_reduce(part); },
        [&] { comm->barrier(); });
    return 0;
  } catch (const std::exception& error) {
    if (comm) comm->abort(error.what());
    std::cerr << "paceline_all_reduce: " << error.what() << '\n';
    return 1;
  }
}
