// The same training steps as plain_steps, with paceline in all its parts: loader, gradient averaging, optimizer,
// recorder.
#include <torch/torch.h>

#include <exception>
#include <iostream>
#include <memory>
#include <optional>

#include "fashion_mnist/models.h"
#include "paceline/comm/comm.h"
#include "paceline/train/data_loader.h"
#include "paceline/train/data_parallel.h"
#include "paceline/train/optimizer.h"
#include "paceline/train/seed.h"
#include "step_clock.h"

using namespace paceline_benchmark;

void run(const StepOptions& options, const paceline::Comm& comm) {
  paceline::seed(comm, 1);
  auto model = fashion_mnist::build_model(options.model);
  paceline::DistributedDataParallel ddp(*model, comm, {.bucket_bytes = options.bucket_bytes, .name = options.model});
  paceline::Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(),
                                                   torch::optim::SGDOptions(0.01).momentum(0.9));
  const auto samples = kBatches * options.batch_size;  // as many in memory as plain_steps has
  auto dataset = std::make_shared<paceline::TensorDataset>(torch::randn({samples, 1, 28, 28}),
                                                           torch::randint(10, {samples}, torch::kInt64));
  paceline::DataLoader loader(dataset, comm, {.batch_size = static_cast<std::size_t>(options.batch_size)});

  StepClock clock(options.channel);
  while (true) {
    for (auto& batch : loader.epoch()) {
      if (!clock.next()) return;
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target).backward();
      optimizer.step();
    }
  }
}

int main(int argc, char** argv) {
  const auto options = parse_step_options(argc, argv, "paceline_steps");
  std::optional<paceline::Comm> comm;
  try {
    comm = paceline::Comm::from_env();
    run(options, *comm);
    return 0;
  } catch (const std::exception& error) {
    if (comm) comm->abort(error.what());
    std::cerr << "paceline_steps: " << error.what() << '\n';
    return 1;
  }
}
