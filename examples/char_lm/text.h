#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <string>

#include "paceline/train/data_loader.h"

namespace char_lm {

/// A text as numbers of characters: 0 for the first that occurs in it, and so on in the order of bytes.
struct Text {
  torch::Tensor characters;  // int64
  std::int64_t kinds = 0;
};

/// From a file, or without one the King James Bible without verse numbers, from the program `bible`. Throws
/// std::runtime_error where there is none, saying what to install.
Text load_text(const std::filesystem::path& file);

/// Sequences of `context` characters, one after the other, and for each character the next one. The last twentieth of
/// the text is held out.
enum class Part { Train, HeldOut };
std::shared_ptr<paceline::TensorDataset> sequences(const Text& text, std::int64_t context, Part part);

}  // namespace char_lm
