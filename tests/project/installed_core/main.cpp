#include <cstdio>
#include <exception>
#include <optional>
#include <vector>

#include "paceline/comm/comm.h"

int main() {
  std::optional<paceline::Comm> comm;
  try {
    comm = paceline::Comm::from_env();
    std::vector<float> data(100'000, static_cast<float>(comm->rank() + 1));
    comm->all_reduce<float>(data);
    std::printf("rank %d of %d over %s: sum %.0f\n", comm->rank(), comm->world_size(), comm->engine_name(),
                static_cast<double>(data.back()));
  } catch (const std::exception& error) {
    if (comm) comm->abort(error.what());
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
