#include "images.h"

namespace fashion_mnist {
namespace {

constexpr double kMean = 0.2860, kDeviation = 0.3530;  // of the training images' pixels, in 0 to 1
constexpr auto kImageSide = static_cast<std::int64_t>(kSide);

}  // namespace

std::shared_ptr<paceline::TensorDataset> load_images(const std::filesystem::path& folder, Split split) {
  auto images = read_images(folder, split);
  const auto count = static_cast<std::int64_t>(images.size());
  auto pixels = torch::from_blob(images.pixels.data(), {count, 1, kImageSide, kImageSide}, torch::kUInt8);
  auto labels = torch::from_blob(images.labels.data(), {count}, torch::kUInt8);
  return std::make_shared<paceline::TensorDataset>(pixels.to(torch::kFloat32).div_(255).sub_(kMean).div_(kDeviation),
                                                   labels.to(torch::kInt64));
}

std::shared_ptr<paceline::TensorDataset> random_images(std::int64_t count, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return std::make_shared<paceline::TensorDataset>(torch::randn({count, 1, kImageSide, kImageSide}, generator),
                                                   torch::randint(kClasses, {count}, generator, torch::kInt64));
}

}  // namespace fashion_mnist
