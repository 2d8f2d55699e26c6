// Trains a small network for a few steps and writes where it started, what it read and where it ended;
// benchmarks/parity/run compares the end with that of PyTorch's DDP.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <optional>

#include "paceline/paceline.h"
#include "paceline/train/state/stored_tensors.h"

namespace {

using paceline::NamedTensor;

constexpr std::int64_t kBatch = 16;

void write(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors) {
  std::vector<torch::Tensor> keep;
  paceline::write_safetensors(path, paceline::stored(tensors, keep));
}

void run(const paceline::Comm& comm, const std::filesystem::path& folder, const std::string& optimizer_name,
         std::int64_t steps, bool accumulate) {
  paceline::seed(comm, 7);
  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)), torch::nn::ReLU(),
                              torch::nn::Flatten(), torch::nn::Linear(8 * 64, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 10));
  paceline::DistributedDataParallel ddp(*model, comm, {.bucket_bytes = 1 << 12});
  if (accumulate) ddp.accumulate(2);
  auto generator = torch::make_generator<at::CPUGeneratorImpl>(3);
  const auto images = torch::randn({steps, comm.world_size(), kBatch, 1, 8, 8}, generator);
  const auto labels = torch::randint(10, {steps, comm.world_size(), kBatch}, generator);
  if (comm.rank() == 0) {
    write(folder / "start.safetensors", ddp.replica().parameters);
    write(folder / "data.safetensors", {{"images", images}, {"labels", labels}});
  }
  const auto train = [&](auto& optimizer) {
    for (std::int64_t step = 0; step < steps; ++step) {
      torch::nn::functional::cross_entropy(model->forward(images[step][comm.rank()]), labels[step][comm.rank()])
          .backward();
      if (!ddp.averaged()) continue;
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  if (optimizer_name == "sgd") {
    paceline::Optimizer<torch::optim::SGD> sgd(ddp, model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    train(sgd);
  } else {
    paceline::Optimizer<torch::optim::Adam> adam(ddp, model->parameters(), torch::optim::AdamOptions(1e-3));
    train(adam);
  }
  if (comm.rank() == 0) write(folder / "end.safetensors", ddp.replica().parameters);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains for benchmarks/parity/run.", "paceline_parity");
  std::filesystem::path folder;
  std::string optimizer = "sgd";
  std::int64_t steps = 20;
  bool accumulate = false;
  app.add_option("--folder", folder)->required();
  app.add_option("--optimizer", optimizer)->check(CLI::IsMember({"sgd", "adam"}));
  app.add_option("--steps", steps)->check(CLI::Range(1, 1000));
  app.add_flag("--accumulate", accumulate);
  CLI11_PARSE(app, argc, argv);
  std::optional<paceline::Comm> comm;
  try {
    comm = paceline::Comm::from_env();
    run(*comm, folder, optimizer, steps, accumulate);
    return 0;
  } catch (const std::exception& error) {
    if (comm) comm->abort(error.what());
    fmt::print(stderr, "paceline_parity: {}\n", error.what());
    return 1;
  }
}
