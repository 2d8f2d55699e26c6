// What benchmarks/peers/run times of an MPI: MPI_Allreduce in place on memory of the C library. It builds this with
// that MPI's own compiler.
#include <mpi.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <new>

#include "bursts.h"

using namespace paceline_benchmark;

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};

/// Untouched, so that only what is reduced takes memory.
std::unique_ptr<float, Free> allocate(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  std::unique_ptr<float, Free> memory(
      static_cast<float*>(std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage)));
  if (!memory) throw std::bad_alloc();
  return memory;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);  // an error of MPI ends the program from within, saying why
  try {
    const auto options = parse_peer_options(argc, argv, "mpi_all_reduce");
    int rank = 0, world_size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    const auto memory = allocate(options.max_bytes);
    const std::span data(memory.get(), options.max_bytes / sizeof(float));
    const Channel channel(options.channel);
    serve_bursts(
        channel, data, rank, world_size,
        [](std::span<float> part) {
          MPI_Allreduce(MPI_IN_PLACE, part.data(), static_cast<int>(part.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        },
        [] { MPI_Barrier(MPI_COMM_WORLD); });
  } catch (const std::exception& error) {
    std::cerr << "mpi_all_reduce: " << error.what() << std::endl;
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
