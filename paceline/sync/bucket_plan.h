#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "paceline/base/dtype.h"

namespace paceline {

/// A trainable parameter, as far as its gradient's way is concerned.
struct ParameterInfo {
  std::string name;
  std::size_t count;  // elements
  Dtype dtype;

  std::size_t bytes() const { return count * size_of(dtype); }
};

/// Where each parameter's gradient lies: which bucket, and which bytes of it.
struct BucketPlan {
  struct Slot {
    std::size_t bucket;
    std::size_t offset;  // bytes from the bucket's start; a multiple of 64
  };
  struct Bucket {
    Dtype dtype;
    std::size_t bytes = 0;                // including the gaps between slots
    std::vector<std::size_t> parameters;  // in slot order
  };
  std::vector<Bucket> buckets;  // in the order they are launched
  std::vector<Slot> slots;      // by parameter

  /// Equal on ranks that plan alike.
  std::uint64_t hash() const;
};

/// Puts parameters into buckets in the order given, which is the order their gradients are expected to arrive in. A
/// bucket holds one type and is closed before it would pass `bucket_bytes`; the first is closed at a quarter of that,
/// so that communication starts early. A parameter larger than that has a bucket of its own.
///
/// `order` is a permutation of the parameters' indices. The result depends on nothing but the arguments.
BucketPlan plan_buckets(std::span<const ParameterInfo> parameters, std::span<const std::size_t> order,
                        std::size_t bucket_bytes);

}  // namespace paceline
