#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "idx.h"
#include "paceline/train/data_loader.h"

namespace fashion_mnist {

/// Images with mean 0 and variance 1 over the training images, and their labels, in memory.
std::shared_ptr<paceline::TensorDataset> load_images(const std::filesystem::path& folder, Split split);

/// Random images and labels of the same shape, the same for the same seed. As good as real ones for timing.
std::shared_ptr<paceline::TensorDataset> random_images(std::int64_t count, std::uint64_t seed);

}  // namespace fashion_mnist
