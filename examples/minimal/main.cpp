#include "paceline/paceline.h"

int main() {
  auto comm = paceline::Comm::from_env();  // one worker when started alone
  paceline::seed(comm, 1);
  torch::nn::Sequential model(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  paceline::DistributedDataParallel ddp(*model, comm);
  paceline::Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));

  auto points = torch::rand({4096, 2}, torch::make_generator<at::CPUGeneratorImpl>(1));
  auto products = std::make_shared<paceline::TensorDataset>(points, points.prod(1, true));
  paceline::DataLoader loader(products, comm, {.batch_size = 64, .seed = 1});
  for (int epoch = 0; epoch < 10; ++epoch) {
    for (auto& batch : loader.epoch()) {  // this worker's part, reshuffled
      optimizer.zero_grad();
      torch::mse_loss(model->forward(batch.data), batch.target).backward();  // gradients are averaged in here
      optimizer.step();
    }
  }
  double error = torch::mse_loss(model->forward(points), points.prod(1, true)).item<double>();
  if (comm.rank() == 0) std::printf("%d workers, mean squared error %.5f\n", comm.world_size(), error);
}
