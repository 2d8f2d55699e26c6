#include "model.h"

#include <cmath>
#include <limits>

namespace char_lm {
namespace {

namespace nn = torch::nn;

class BlockImpl final : public nn::Module {
 public:
  BlockImpl(std::int64_t width, std::int64_t heads)
      : heads_(heads),
        before_attention_(register_module("before_attention", nn::LayerNorm(nn::LayerNormOptions({width})))),
        query_key_value_(register_module("query_key_value", nn::Linear(width, 3 * width))),
        mix_(register_module("mix", nn::Linear(width, width))),
        before_perceptron_(register_module("before_perceptron", nn::LayerNorm(nn::LayerNormOptions({width})))),
        widen_(register_module("widen", nn::Linear(width, 4 * width))),
        narrow_(register_module("narrow", nn::Linear(4 * width, width))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = x + mix_(attention(before_attention_(x)));
    return x + narrow_(torch::gelu(widen_(before_perceptron_(x))));
  }

 private:
  torch::Tensor attention(const torch::Tensor& x) {
    const auto n = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts = query_key_value_(x).view({n, length, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
    auto scores = parts[0].matmul(parts[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(width / heads_));
    const auto later = torch::ones({length, length}, torch::kBool).triu(1);
    scores = scores.masked_fill(later, -std::numeric_limits<float>::infinity());
    return scores.softmax(-1).matmul(parts[2]).transpose(1, 2).reshape({n, length, width});
  }

  std::int64_t heads_;
  nn::LayerNorm before_attention_;
  nn::Linear query_key_value_, mix_;
  nn::LayerNorm before_perceptron_;
  nn::Linear widen_, narrow_;
};
TORCH_MODULE(Block);

}  // namespace

TransformerImpl::TransformerImpl(std::int64_t kinds, std::int64_t context, std::int64_t width, std::int64_t layers,
                                 std::int64_t heads)
    : characters_(register_module("characters", nn::Embedding(kinds, width))),
      places_(register_module("places", nn::Embedding(context, width))),
      blocks_(register_module("blocks", nn::ModuleList())),
      last_(register_module("last", nn::LayerNorm(nn::LayerNormOptions({width})))) {
  for (std::int64_t i = 0; i < layers; ++i) blocks_->push_back(Block(width, heads));
  nn::init::normal_(characters_->weight, 0, 0.1);
  nn::init::normal_(places_->weight, 0, 0.1);
}

torch::Tensor TransformerImpl::forward(const torch::Tensor& characters) {
  auto x = characters_(characters) + places_(torch::arange(characters.size(1)));
  for (const auto& block : *blocks_) x = block->as<BlockImpl>()->forward(x);
  return torch::linear(last_(x), characters_->weight);
}

}  // namespace char_lm
