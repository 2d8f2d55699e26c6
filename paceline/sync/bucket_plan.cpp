#include "paceline/sync/bucket_plan.h"

#include "paceline/base/hash.h"

namespace paceline {
namespace {

constexpr std::size_t kSlotAlignment = 64;

std::size_t aligned(std::size_t bytes) { return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment; }

}  // namespace

BucketPlan plan_buckets(std::span<const ParameterInfo> parameters, std::span<const std::size_t> order,
                        std::size_t bucket_bytes) {
  BucketPlan plan;
  plan.slots.resize(parameters.size());
  for (const std::size_t index : order) {
    const ParameterInfo& parameter = parameters[index];
    const std::size_t limit = plan.buckets.size() <= 1 ? bucket_bytes / 4 : bucket_bytes;
    const bool fits = !plan.buckets.empty() && plan.buckets.back().dtype == parameter.dtype &&
                      plan.buckets.back().bytes + parameter.bytes() <= limit;
    if (!fits) plan.buckets.push_back({.dtype = parameter.dtype, .bytes = 0, .parameters = {}});
    BucketPlan::Bucket& bucket = plan.buckets.back();
    plan.slots[index] = {plan.buckets.size() - 1, bucket.bytes};
    bucket.bytes += aligned(parameter.bytes());
    bucket.parameters.push_back(index);
  }
  return plan;
}

std::uint64_t BucketPlan::hash() const {
  std::uint64_t hash = buckets.size();
  for (const Bucket& bucket : buckets) {
    hash = hash_of(std::as_bytes(std::span(&bucket.bytes, 1)), hash);
    hash = hash_of(std::as_bytes(std::span(&bucket.dtype, 1)), hash);
    hash = hash_of(std::as_bytes(std::span(bucket.parameters)), hash);
  }
  return hash_of(std::as_bytes(std::span(slots)), hash);
}

}  // namespace paceline
