// Trains a model on Fashion-MNIST with data-parallel workers:
//
//     paceline run -n 2 -- fashion_mnist --epochs 3
//
// Started without the launcher it is an ordinary program with one worker.
#include <fmt/core.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "images.h"
#include "models.h"
#include "options.h"
#include "paceline/base/hash.h"
#include "paceline/comm/comm.h"
#include "paceline/observe/report.h"
#include "paceline/observe/summary.h"
#include "paceline/train/data_loader.h"
#include "paceline/train/data_parallel.h"
#include "paceline/train/optimizer.h"
#include "paceline/train/report.h"
#include "paceline/train/seed.h"
#include "progress.h"
#include "schedule.h"
#include "terminal.h"
#include "worker_main.h"

using namespace fashion_mnist;
using paceline::Comm, paceline::DataLoader, paceline::DistributedDataParallel;
using paceline::SampleOrder, paceline::SampleTail;

/// The share of test images that are classified right. Each rank looks at its part, and no image counts twice. (Batch
/// norm's running statistics are each rank's own.)
double evaluate(torch::nn::Sequential& model, DataLoader& loader, const Comm& comm) {
  torch::NoGradGuard no_grad;
  model->eval();
  double right = 0, seen = 0;
  for (auto& batch : loader.epoch()) {
    right += model->forward(batch.data).argmax(1).eq(batch.target).sum().item<double>();
    seen += static_cast<double>(batch.size());
  }
  return comm.mean(right / seen, seen);
}

/// Returns the last test accuracy, if there is a test loader.
template <class Optimizer>
std::optional<double> train(torch::nn::Sequential& model, DistributedDataParallel& ddp, Optimizer& optimizer,
                            DataLoader& loader, DataLoader* test_loader, const Options& options) {
  const Comm& comm = ddp.comm();
  const double global_batch = static_cast<double>(options.batch_size) * comm.world_size();
  const Schedule schedule{.peak = options.lr * global_batch / kLrBatch,
                          .steps = std::min(options.steps, loader.batches() * options.epochs)};
  Progress progress(
      ddp.recorder(),
      {.shown = comm.rank() == 0, .world_size = comm.world_size(), .epochs = options.epochs, .steps = schedule.steps});
  std::optional<double> accuracy;
  std::size_t step = 0;
  for (int epoch = 1; step < schedule.steps; ++epoch) {
    model->train();
    for (auto& batch : loader.epoch()) {  // this rank's part of the images, in an order of this epoch's own
      for (auto& group : optimizer.param_groups()) group.options().set_lr(schedule.at(step));
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target);
      loss.backward();  // gradients are averaged over the ranks in here
      optimizer.step();
      progress.step(epoch, ++step, loss.template item<double>());
      if (step == schedule.steps) break;
    }
    if (test_loader == nullptr) continue;
    accuracy = evaluate(model, *test_loader, comm);
    progress.line(fmt::format("epoch {}/{}: test accuracy {:.2f} %", epoch, options.epochs, *accuracy * 100));
  }
  return accuracy;
}

std::uint64_t parameter_hash(const torch::nn::Sequential& model) {
  std::uint64_t hash = 0;
  for (const auto& parameter : model->parameters()) {
    const auto bits = parameter.detach().contiguous();
    hash = paceline::hash_of(std::span(static_cast<const std::byte*>(bits.data_ptr()), bits.nbytes()), hash);
  }
  return hash;
}

void run(const Options& options, const Comm& comm) {
  std::optional<double> one_worker_rate;
  if (!options.baseline.empty()) one_worker_rate = paceline::read_report(options.baseline).samples_per_s;
  if (comm.rank() == 0 && !options.report.empty()) paceline::require_writable(options.report);

  paceline::seed(comm, options.seed);
  auto images = options.synthetic ? random_images(8192, options.seed) : load_images(options.data, Split::Train);
  DataLoader loader(images, comm, {.batch_size = options.batch_size, .seed = options.seed});
  std::optional<DataLoader> test_loader;
  if (options.evaluate) {
    test_loader.emplace(
        load_images(options.data, Split::Test), comm,
        paceline::LoaderOptions{.batch_size = 500, .order = SampleOrder::Sequential, .tail = SampleTail::Exact});
  }

  auto model = build_model(options.model);
  DistributedDataParallel ddp(*model, comm, {.bucket_bytes = options.bucket_bytes, .name = options.model});
  DataLoader* test = test_loader ? &*test_loader : nullptr;
  std::optional<double> accuracy;
  if (options.optimizer == "sgd") {
    const auto sgd = torch::optim::SGDOptions(options.lr).momentum(0.9).nesterov(true).weight_decay(1e-4);
    paceline::Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), sgd);
    accuracy = train(model, ddp, optimizer, loader, test, options);
  } else {
    const auto adamw = torch::optim::AdamWOptions(options.lr);
    paceline::Optimizer<torch::optim::AdamW> optimizer(ddp, model->parameters(), adamw);
    accuracy = train(model, ddp, optimizer, loader, test, options);
  }

  const auto report = paceline::collect_report(ddp, {.run_id = options.report.filename().string(),
                                                     .model = options.model,
                                                     .optimizer = options.optimizer,
                                                     .batch_per_rank = options.batch_size,
                                                     .test_accuracy = accuracy,
                                                     .samples_per_s_one = one_worker_rate});
  if (comm.rank() != 0) return;
  paceline::SummaryOptions look{.charset = locale_is_utf8() ? paceline::Charset::Utf8 : paceline::Charset::Ascii};
  if (!options.report.empty()) look.report_path = paceline::write_report(report, options.report).string();
  fmt::print("{}", paceline::terminal_summary(report, look));
  if (options.hash) fmt::print("  Parameters {:016x}\n", parameter_hash(model));
}

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  return worker_main("fashion_mnist", [&](const Comm& comm) { run(options, comm); });
}
