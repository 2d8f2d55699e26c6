#include "paceline/data/sampler.h"

#include <fmt/format.h>

#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "paceline/base/enumerator.h"
#include "paceline/base/error.h"

namespace paceline {
namespace {

void require_valid(const SamplerOptions& options);
template <class Index>
std::vector<Index> permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch);
std::uint64_t mix(std::uint64_t seed, std::uint64_t epoch);
std::uint64_t below(std::uint64_t bound, std::mt19937_64& random);
std::uint64_t scramble(std::uint64_t x);

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options) { require_valid(options); }

std::vector<std::uint64_t> Sampler::next_epoch() {
  std::vector<std::uint64_t> share = indices(epoch_, done_);
  ++epoch_;
  done_ = 0;
  return share;
}

void Sampler::resume_at(std::uint64_t epoch, std::uint64_t done) {
  epoch_ = done < options_.size ? epoch : epoch + 1;
  done_ = done < options_.size ? done : 0;
}

std::vector<std::uint64_t> Sampler::indices(std::uint64_t epoch, std::uint64_t done) const {
  std::vector<std::uint64_t> share;
  const std::uint64_t count = share_of(options_.size - done);
  share.reserve(count);
  const auto take = [&](auto&& sample_at) {
    std::uint64_t position = done + static_cast<std::uint64_t>(options_.rank);
    for (std::uint64_t i = 0; i < count; ++i) {
      share.push_back(sample_at(position < options_.size ? position : position - options_.size));
      position += static_cast<std::uint64_t>(options_.world_size);
    }
  };
  if (options_.order == SampleOrder::Sequential) {
    take([](std::uint64_t position) { return position; });
  } else if (options_.size - 1 <= std::numeric_limits<std::uint32_t>::max()) {
    take([order = permutation<std::uint32_t>(options_.size, options_.seed, epoch)](std::uint64_t position) {
      return static_cast<std::uint64_t>(order[position]);
    });
  } else {
    take([order = permutation<std::uint64_t>(options_.size, options_.seed, epoch)](std::uint64_t position) {
      return order[position];
    });
  }
  return share;
}

std::uint64_t Sampler::samples_per_epoch() const { return share_of(options_.size); }

std::uint64_t Sampler::share_of(std::uint64_t samples) const {
  const auto world = static_cast<std::uint64_t>(options_.world_size);
  const std::uint64_t each = samples / world;
  const std::uint64_t left = samples % world;
  switch (options_.tail) {
    case SampleTail::Drop: return each;
    case SampleTail::Pad: return each + (left > 0 ? 1 : 0);
    case SampleTail::Exact: return each + (static_cast<std::uint64_t>(options_.rank) < left ? 1 : 0);
  }
  return each;
}

namespace {

void require_valid(const SamplerOptions& options) {
  require_enumerator("the sampler's order", options.order, SampleOrder::Sequential);
  require_enumerator("the sampler's tail", options.tail, SampleTail::Exact);
  if (options.size == 0) throw Error(ErrorCode::InvalidArgument, "the sampler's data set is empty (size 0)");
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the sampler's rank {} is not one of 0 to world size - 1; the world size is {}",
                            options.rank, options.world_size));
  }
  if (options.tail != SampleTail::Exact && static_cast<std::uint64_t>(options.world_size) > options.size) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("{} workers cannot share a data set of {} sample{}; start at most {} worker{}, use more data, or "
                    "SampleTail::Exact, which leaves the others without any",
                    options.world_size, options.size, options.size == 1 ? "" : "s", options.size,
                    options.size == 1 ? "" : "s"));
  }
}

template <class Index>
std::vector<Index> permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<Index> order(size);
  std::iota(order.begin(), order.end(), Index{0});
  std::mt19937_64 random(mix(seed, epoch));
  // std::shuffle is not used: what it draws is up to each standard library.
  for (std::uint64_t last = size - 1; last > 0; --last) std::swap(order[last], order[below(last + 1, random)]);
  return order;
}

/// A seed for each pair: neighbours, e.g. (1, 2) and (2, 1), have nothing in common.
std::uint64_t mix(std::uint64_t seed, std::uint64_t epoch) { return scramble(scramble(seed) + epoch); }

/// Uniform over 0 .. bound-1: draws below 2^64 mod bound, which would favour small results, are drawn anew.
std::uint64_t below(std::uint64_t bound, std::mt19937_64& random) {
  const std::uint64_t unfair = (0 - bound) % bound;
  std::uint64_t drawn = random();
  while (drawn < unfair) drawn = random();
  return drawn % bound;
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014), a bijection in which each bit depends on all others.
std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

}  // namespace paceline
