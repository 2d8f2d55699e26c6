#pragma once

#include <torch/torch.h>

#include <string>

namespace fashion_mnist {

/// A new model of 28 x 28 grey images in 10 classes, with libtorch's initial values:
///
///     cnn       two blocks of convolution 3x3 (32, 64), batch norm, ReLU, max-pool; linear 3136-128-10   0.42 M
///     mlp       linear 784-4096-4096-10: little to compute for how much there is to communicate            20 M
///     resnet18  for small images: a 3x3 stem without pooling                                            11.2 M
///
/// Throws std::invalid_argument for another name.
torch::nn::Sequential build_model(const std::string& name);

}  // namespace fashion_mnist
