#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace char_lm {

struct Options {
  std::filesystem::path text;  ///< Empty: the King James Bible, as `bible` prints it.
  std::size_t steps = 300;
  std::size_t batch_size = 16;  ///< Sequences a backward and rank.
  std::size_t accumulate = 1;   ///< Backwards a step.
  double clip = 1;              ///< Largest norm of the gradient; 0 for no limit.
  double lr = 2e-3;
  std::int64_t context = 64, width = 64, layers = 2, heads = 4;
  std::uint64_t seed = 1;
  std::filesystem::path checkpoints;  ///< Folder to save to and to go on from; empty for none.
  std::size_t save_every = 100;       ///< Steps.
};

/// Reads the command line. Ends the program after --help (0) and, with one line on stderr, after bad use (64).
Options parse_options(int argc, char** argv);

}  // namespace char_lm
