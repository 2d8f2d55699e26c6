// A worker as benchmarks/failures/run needs it: steps of computing and of collectives, without end or for some seconds,
// and a line that says when it heard of a failure.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/comm/comm.h"

namespace {

using namespace paceline;

constexpr std::size_t kBuckets = 4, kFloats = 60'000;

void compute_for(Nanoseconds duration) {
  for (const Deadline end(duration); !end.passed();) continue;
}

/// As a reducer does it: a small operation, then buckets that are started while the rank computes.
void step(const Comm& comm, const Buffer& memory, std::uint64_t number, std::mt19937_64& random) {
  comm.set_step(number);
  auto* const floats = reinterpret_cast<float*>(memory.data());
  std::fill_n(floats, kBuckets * kFloats, static_cast<float>(comm.rank()));
  comm.barrier();
  std::vector<Comm::Work> work;
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    compute_for(std::chrono::microseconds(random() % 1000));
    auto* const at = memory.data() + bucket * kFloats * sizeof(float);
    work.push_back(
        comm.start({.kind = Collective::AllReduce, .dtype = Dtype::Float32, .count = kFloats, .in = at, .out = at}));
  }
  for (Comm::Work& one : work) one.wait();
  const auto n = static_cast<float>(comm.world_size());
  for (std::size_t i = 0; i < kBuckets * kFloats; ++i) {
    if (floats[i] != n * (n - 1) / 2) throw std::logic_error("a wrong sum");
  }
}

int run(double for_s, double alone_s) {
  std::optional<Comm> comm;
  try {
    comm = Comm::from_env();
    const Buffer memory = comm->allocate(kBuckets * kFloats * sizeof(float));
    std::mt19937_64 random(static_cast<std::uint64_t>(comm->rank()));
    comm->barrier();
    fmt::print("ready {}\n", ::getpid());
    std::fflush(stdout);
    const Nanoseconds began = now();
    for (std::uint64_t number = 1;; ++number) {
      step(*comm, memory, number, random);
      if (for_s == 0) continue;
      // Rank 0 writes a checkpoint, say; the others wait.
      if (alone_s > 0 && number % 50 == 0 && comm->rank() == 0) {
        compute_for(std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(alone_s)));
      }
      if (comm->mean(seconds(now() - began)) >= for_s) break;
    }
    fmt::print("done\n");
    return 0;
  } catch (const std::exception& error) {
    fmt::print("heard {} {}\n", now().count(), error.what());
    std::fflush(stdout);
    if (comm) comm->abort(error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const double for_s = argc > 1 ? std::strtod(argv[1], nullptr) : 0;
  const double alone_s = argc > 2 ? std::strtod(argv[2], nullptr) : 0;
  return run(for_s, alone_s);
}
