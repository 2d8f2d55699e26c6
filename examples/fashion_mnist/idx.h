#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

namespace fashion_mnist {

inline constexpr std::size_t kSide = 28;  ///< Images are kSide x kSide grey pixels.
inline constexpr int kClasses = 10;

struct LabelledImages {
  std::vector<std::uint8_t> pixels;  ///< One image after the other, row by row.
  std::vector<std::uint8_t> labels;  ///< 0 to kClasses - 1
  std::size_t size() const { return labels.size(); }
};

enum class Split { Train, Test };

/// Reads the two gzipped IDX files of one part of the data set from `folder`. Throws std::runtime_error, which names
/// the file and what to do, for whatever is missing, damaged or not Fashion-MNIST's shape.
LabelledImages read_images(const std::filesystem::path& folder, Split split);

}  // namespace fashion_mnist
