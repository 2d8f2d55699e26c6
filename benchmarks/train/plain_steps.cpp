// Training steps with libtorch alone: what paceline is compared with. Also, started twice, the ceiling: two processes
// that share the machine but do not talk.
#include <torch/torch.h>

#include <exception>
#include <iostream>

#include "fashion_mnist/models.h"
#include "step_clock.h"

using namespace paceline_benchmark;

void run(const StepOptions& options) {
  torch::manual_seed(1);
  auto model = fashion_mnist::build_model(options.model);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  const auto images = torch::randn({kBatches, options.batch_size, 1, 28, 28});
  const auto labels = torch::randint(10, {kBatches, options.batch_size}, torch::kInt64);

  StepClock clock(options.channel);
  for (std::int64_t i = 0; clock.next(); i = (i + 1) % kBatches) {
    // Undefined gradients need not be zeroed and added to; libtorch 1.13's zero_grad() cannot do that.
    for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
    torch::nn::functional::cross_entropy(model->forward(images[i]), labels[i]).backward();
    optimizer.step();
  }
}

int main(int argc, char** argv) {
  const auto options = parse_step_options(argc, argv, "plain_steps");
  try {
    run(options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "plain_steps: " << error.what() << '\n';
    return 1;
  }
}
