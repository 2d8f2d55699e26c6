#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace char_lm {

/// A transformer that looks at what came before only: embeddings of characters and places, blocks of attention and a
/// perceptron with layer norm in front of each, and an output that shares the characters' embedding.
class TransformerImpl final : public torch::nn::Module {
 public:
  TransformerImpl(std::int64_t kinds, std::int64_t context, std::int64_t width, std::int64_t layers,
                  std::int64_t heads);
  /// (N, T) characters to (N, T, kinds) scores of the next one.
  torch::Tensor forward(const torch::Tensor& characters);

 private:
  torch::nn::Embedding characters_, places_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm last_;
};
TORCH_MODULE(Transformer);

}  // namespace char_lm
