#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "paceline/base/dtype.h"
#include "paceline/base/kernels.h"
#include "paceline/tools/bench/collectives.h"
#include "paceline/tools/bench/sizes.h"

namespace paceline::tools {

enum class BenchTransport : std::uint8_t { Auto, SharedMemory, Tcp };
enum class BenchBuffers : std::uint8_t { Registered, Private };
/// Whether input and output are the same memory.
enum class Place : std::uint8_t { OutOfPlace, InPlace };

/// What `paceline bench` was asked for.
struct BenchOptions {
  const CollectiveTraits* collective = nullptr;
  int workers = 0;
  SizeRange sizes;
  Dtype dtype = Dtype::Float32;
  ReduceOp reduce = ReduceOp::Sum;
  int root = 0;
  BenchTransport transport = BenchTransport::Auto;
  Algorithm algorithm = Algorithm::Auto;
  BenchBuffers buffers = BenchBuffers::Registered;
  int warmup = 5;
  std::optional<int> iterations;  ///< Else as many as fit `seconds`.
  double seconds = 0.3;           ///< Measuring time of a row.
  bool check = true;
  bool dirty = false;  ///< Rewrite inputs before each iteration.
  bool out_of_place = true;
  bool in_place = true;
  std::optional<std::string> json;  ///< A file, or "-" for stdout instead of the table.
  std::optional<std::string> plot;  ///< A file.
};

}  // namespace paceline::tools
