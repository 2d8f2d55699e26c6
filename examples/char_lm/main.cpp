// Trains a character transformer with data-parallel workers:
//
//     paceline run -n 2 -- char_lm --accumulate 2 --clip 1
//
// The mean is over characters, so any split of them over workers and backwards is one large batch.
#include <fmt/core.h>

#include <string>

#include "model.h"
#include "options.h"
#include "paceline/paceline.h"
#include "text.h"
#include "worker_main.h"

using namespace char_lm;
using paceline::Comm, paceline::DataLoader;

torch::Tensor sum_of_losses(Transformer& model, const paceline::Batch& batch) {
  return torch::nn::functional::cross_entropy(model(batch.data).flatten(0, 1), batch.target.flatten(),
                                              torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

/// The mean loss of a character over the held-out text, each sequence looked at once by one of the workers.
double evaluate(Transformer& model, DataLoader& loader, const Comm& comm) {
  const torch::NoGradGuard no_grad;
  paceline::Metrics metrics;
  for (auto& batch : loader.epoch()) {
    const auto count = static_cast<double>(batch.target.numel());
    metrics.mean("loss", sum_of_losses(model, batch).item<double>() / count, count);
  }
  return metrics.over(comm).at("loss");
}

void run(const Options& options, const Comm& comm) {
  paceline::seed(comm, options.seed);
  const Text text = load_text(options.text);
  DataLoader loader(sequences(text, options.context, Part::Train), comm,
                    {.batch_size = options.batch_size, .seed = options.seed});
  DataLoader held_out(
      sequences(text, options.context, Part::HeldOut), comm,
      {.batch_size = 64, .order = paceline::SampleOrder::Sequential, .tail = paceline::SampleTail::Exact});

  Transformer model(text.kinds, options.context, options.width, options.layers, options.heads);
  paceline::DistributedDataParallel ddp(*model, comm, {.name = "char_lm", .reduction = paceline::Reduction::Weighted});
  paceline::Optimizer<torch::optim::AdamW> optimizer(ddp, model->parameters(), torch::optim::AdamWOptions(options.lr));
  ddp.accumulate(options.accumulate);

  paceline::JobState job{.loaders = {&loader}};
  if (!options.checkpoints.empty()) {
    const auto loaded = paceline::load(options.checkpoints, ddp, job);
    if (loaded && comm.rank() == 0) fmt::print("going on from {}\n", loaded->path.string());
  }
  std::size_t step = ddp.rounds();
  paceline::Metrics since_last_line;
  while (step < options.steps) {
    for (auto& batch : loader.epoch()) {
      const auto count = static_cast<double>(batch.target.numel());
      ddp.set_weight(count);
      auto loss = sum_of_losses(model, batch);
      loss.backward();  // gradients are averaged over characters and workers in here
      since_last_line.mean("loss", loss.item<double>() / count, count);
      if (!ddp.averaged()) continue;  // more is to be accumulated
      if (options.clip > 0) paceline::clip_grad_norm(ddp, options.clip);
      optimizer.step();
      optimizer.zero_grad();
      if (++step % 50 == 0 || step == options.steps) {
        const double mean = since_last_line.over(comm).at("loss");
        since_last_line = {};
        if (comm.rank() == 0) fmt::print("step {}/{}: loss {:.4f}\n", step, options.steps, mean);
      }
      if (!options.checkpoints.empty() && step % options.save_every == 0) paceline::save(options.checkpoints, ddp, job);
      if (step == options.steps) break;
    }
  }
  const double loss = evaluate(model, held_out, comm);
  if (comm.rank() == 0) fmt::print("held-out loss {:.4f} nats a character after {} steps\n", loss, step);
}

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  return worker_main("char_lm", [&](const Comm& comm) { run(options, comm); });
}
