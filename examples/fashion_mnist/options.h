#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

namespace fashion_mnist {

struct Options {
  std::string model = "cnn";
  int epochs = 3;
  std::size_t steps = std::numeric_limits<std::size_t>::max();  ///< Stop after so many, if the epochs last that long.
  std::size_t batch_size = 64;                                  ///< Of one rank.
  double lr = 0;  ///< At a global batch of kLrBatch. The default depends on the optimizer.
  std::string optimizer = "sgd";
  std::uint64_t seed = 1;
  std::filesystem::path data = "/usr/share/datasets/fashion-mnist";
  bool synthetic = false;
  bool evaluate = true;
  bool hash = false;               ///< Print parameter_hash() at the end.
  std::filesystem::path report;    ///< Folder for report.json; empty for none.
  std::filesystem::path baseline;  ///< Report of a one-worker run; empty for none.
  std::size_t bucket_bytes = std::size_t{1} << 20;
};

inline constexpr double kLrBatch = 128;

/// Reads the command line. Ends the program after --help (0) and, with one line on stderr, after bad use (64).
Options parse_options(int argc, char** argv);

}  // namespace fashion_mnist
