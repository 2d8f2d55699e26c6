// Learns to multiply two numbers, on as many workers as there are: the place for your own model, data and loop.
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>

#include "paceline/paceline.h"

namespace {

void train(const paceline::Comm& comm) {
  paceline::seed(comm, 1);  // the model starts alike everywhere
  torch::nn::Sequential model(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  paceline::DistributedDataParallel ddp(*model, comm);
  paceline::Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));

  auto points = torch::rand({4096, 2}, torch::make_generator<at::CPUGeneratorImpl>(1));
  auto products = points.prod(1, true);
  auto dataset = std::make_shared<paceline::TensorDataset>(points, products);
  paceline::DataLoader loader(dataset, comm, {.batch_size = 64, .seed = 1});
  for (int epoch = 0; epoch < 10; ++epoch) {
    for (auto& batch : loader.epoch()) {  // this worker's part, reshuffled
      optimizer.zero_grad();
      torch::mse_loss(model->forward(batch.data), batch.target).backward();  // gradients are averaged in here
      optimizer.step();
    }
  }
  torch::NoGradGuard no_gradients;
  const double error = torch::mse_loss(model->forward(points), products).item<double>();
  if (comm.rank() == 0) std::printf("%d workers, mean squared error %.5f\n", comm.world_size(), error);
}

}  // namespace

int main() {
  std::optional<paceline::Comm> comm;
  try {
    comm = paceline::Comm::from_env();  // one worker when started alone
    train(*comm);
  } catch (const std::exception& error) {
    if (comm) comm->abort(error.what());  // the others then say why, rather than that this one died
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
