#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "paceline/train/ddp/data_parallel_state.h"

namespace paceline {

std::string DistributedDataParallel::State::explain() const {
  const BucketPlan& plan = reducer.plan();
  std::size_t elements = 0, bytes = 0, largest = 0;
  for (const NamedTensor& parameter : parameters) elements += static_cast<std::size_t>(parameter.tensor.numel());
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    bytes += bucket.bytes;
    largest = std::max(largest, bucket.bytes);
  }
  std::string text =
      fmt::format("model '{}': {} trained parameters in {} tensors, {} frozen, {} buffers\n", options.name, elements,
                  parameters.size(), replica.parameters.size() - parameters.size(), replica.buffers.size());
  text += fmt::format("rank {} of {} over {}; {} synchronised batch norms, {} optimizers\n", comm.rank(),
                      comm.world_size(), comm.engine_name(), batch_norms.size(), optimizers.size());
  text +=
      fmt::format("{} bytes of gradients in {} buckets, the largest of {}, in order {}\n", bytes, plan.buckets.size(),
                  largest, reducer.rounds() == 0 ? "of registration, reversed" : "of arrival in rank 0's first step");
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    std::vector<std::string> names;
    for (const std::size_t index : plan.buckets[b].parameters) names.push_back(parameters[index].name);
    text += fmt::format("  bucket {}: {} bytes of {}: {}\n", b, plan.buckets[b].bytes,
                        paceline::to_string(plan.buckets[b].dtype), fmt::join(names, ", "));
  }
  text += fmt::format("{} averagings, {} of them dropped; {} backwards accumulated since\n", reducer.rounds(), skipped,
                      backwards);
  for (const std::size_t index : absent_here) {
    text += fmt::format("  '{}' took no part on {}\n", parameters[index].name,
                        reducer.took_part(index) ? "this rank" : "any rank");
  }
  return text;
}

}  // namespace paceline
