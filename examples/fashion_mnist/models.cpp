#include "models.h"

#include <cstdint>
#include <stdexcept>

namespace fashion_mnist {
namespace {

namespace nn = torch::nn;

nn::Sequential cnn();
nn::Sequential mlp();
nn::Sequential resnet18();

}  // namespace

nn::Sequential build_model(const std::string& name) {
  if (name == "cnn") return cnn();
  if (name == "mlp") return mlp();
  if (name == "resnet18") return resnet18();
  throw std::invalid_argument("there is no model \"" + name + "\"; choose cnn, mlp or resnet18");
}

namespace {

/// Without bias, since batch norm follows.
nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

nn::Sequential cnn() {
  return nn::Sequential(convolution(1, 32, 3), nn::BatchNorm2d(32), nn::ReLU(), nn::MaxPool2d(2),   //
                        convolution(32, 64, 3), nn::BatchNorm2d(64), nn::ReLU(), nn::MaxPool2d(2),  //
                        nn::Flatten(), nn::Linear(3136, 128), nn::ReLU(), nn::Linear(128, 10));
}

nn::Sequential mlp() {
  return nn::Sequential(nn::Flatten(), nn::Linear(784, 4096), nn::ReLU(), nn::Linear(4096, 4096), nn::ReLU(),
                        nn::Linear(4096, 10));
}

class BlockImpl final : public nn::Module {
 public:
  BlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : body_(register_module("body", nn::Sequential(convolution(in, out, 3, stride), nn::BatchNorm2d(out), nn::ReLU(),
                                                     convolution(out, out, 3), nn::BatchNorm2d(out)))) {
    if (stride == 1 && in == out) return;
    skip_ = register_module("skip", nn::Sequential(convolution(in, out, 1, stride), nn::BatchNorm2d(out)));
  }

  torch::Tensor forward(torch::Tensor x) {
    const auto y = body_->forward(x);
    return torch::relu(y + (skip_ ? skip_->forward(x) : x));
  }

 private:
  nn::Sequential body_;
  nn::Sequential skip_{nullptr};  // null where input and output have the same shape
};
TORCH_MODULE(Block);

nn::Sequential resnet18() {
  return nn::Sequential(convolution(1, 64, 3), nn::BatchNorm2d(64), nn::ReLU(),                          //
                        Block(64, 64, 1), Block(64, 64, 1), Block(64, 128, 2), Block(128, 128, 1),       //
                        Block(128, 256, 2), Block(256, 256, 1), Block(256, 512, 2), Block(512, 512, 1),  //
                        nn::AdaptiveAvgPool2d(1), nn::Flatten(), nn::Linear(512, 10));
}

}  // namespace
}  // namespace fashion_mnist
