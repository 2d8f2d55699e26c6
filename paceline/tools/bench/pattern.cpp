#include "paceline/tools/bench/pattern.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace paceline::tools {
namespace {

constexpr std::size_t kPeriod = 4093;  // a prime

/// So few different values that even uint8 and bfloat16 hold the sum over all ranks.
std::int64_t values_for(int world_size) {
  std::int64_t values = 16;
  while (values > 2 && (values - 1) * world_size > 255) values /= 2;
  return values;
}

std::int64_t value_at(int rank, std::size_t i, std::int64_t values) {
  const std::uint64_t mixed =
      (i + 1) * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(rank + 1) * 0xD1B54A32D192ED03u;
  return static_cast<std::int64_t>((mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9u >> 58) % values;
}

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}
template <class T>
T get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void store(Dtype dtype, double value, std::byte* to) {
  switch (dtype) {
    case Dtype::Float32: return put(to, static_cast<float>(value));
    case Dtype::Float64: return put(to, value);
    case Dtype::Float16: return put(to, to_half(static_cast<float>(value)));
    case Dtype::BFloat16: return put(to, to_bfloat16(static_cast<float>(value)));
    case Dtype::Int32: return put(to, static_cast<std::int32_t>(value));
    case Dtype::Int64: return put(to, static_cast<std::int64_t>(value));
    case Dtype::UInt8: return put(to, static_cast<std::uint8_t>(static_cast<std::int64_t>(value)));
  }
}

double load(Dtype dtype, const std::byte* from) {
  switch (dtype) {
    case Dtype::Float32: return static_cast<double>(get<float>(from));
    case Dtype::Float64: return get<double>(from);
    case Dtype::Float16: return static_cast<double>(to_float(get<Half>(from)));
    case Dtype::BFloat16: return static_cast<double>(to_float(get<BFloat16>(from)));
    case Dtype::Int32: return get<std::int32_t>(from);
    case Dtype::Int64: return static_cast<double>(get<std::int64_t>(from));
    case Dtype::UInt8: return get<std::uint8_t>(from);
  }
  return 0;
}

/// The distance of neighbours of 1.
double last_place(Dtype dtype) {
  switch (dtype) {
    case Dtype::Float32: return static_cast<double>(std::numeric_limits<float>::epsilon());
    case Dtype::Float64: return std::numeric_limits<double>::epsilon();
    case Dtype::Float16: return 0x1p-10;
    case Dtype::BFloat16: return 0x1p-7;
    default: return 0;
  }
}

double reduce_exactly(ReduceOp reduce, int world_size, std::size_t i, std::int64_t values) {
  std::int64_t sum = 0, least = values, most = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    const std::int64_t value = value_at(rank, i, values);
    sum += value;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  switch (reduce) {
    case ReduceOp::Min: return static_cast<double>(least);
    case ReduceOp::Max: return static_cast<double>(most);
    case ReduceOp::Mean: return static_cast<double>(sum) / world_size;
    case ReduceOp::Sum: break;
  }
  return static_cast<double>(sum);
}

}  // namespace

Pattern::Pattern(Dtype dtype, ReduceOp reduce, int world_size)
    : dtype_(dtype),
      element_(size_of(dtype)),
      mean_tolerance_(reduce == ReduceOp::Mean ? last_place(dtype) : 0),
      reduced_(kPeriod * element_) {
  const std::int64_t values = values_for(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    Tile& tile = inputs_.emplace_back(kPeriod * element_);
    for (std::size_t i = 0; i < kPeriod; ++i) {
      store(dtype, static_cast<double>(value_at(rank, i, values)), tile.data() + i * element_);
    }
  }
  for (std::size_t i = 0; i < kPeriod; ++i) {
    store(dtype, reduce_exactly(reduce, world_size, i, values), reduced_.data() + i * element_);
  }
}

namespace {

/// Calls `visit(offset, piece)` for stretches of `bytes` that lie in one period each; both in bytes.
template <class Visit>
void for_each_piece(std::size_t bytes, std::size_t element, std::size_t first, Visit&& visit) {
  std::size_t at = first % kPeriod * element;  // in the period
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(bytes - done, kPeriod * element - at);
    visit(done, at, piece);
    done += piece;
    at = 0;
  }
}

}  // namespace

void Pattern::write(std::span<std::byte> to, int rank, std::size_t first) const {
  const Tile& tile = inputs_[static_cast<std::size_t>(rank)];
  for_each_piece(to.size(), element_, first, [&](std::size_t offset, std::size_t at, std::size_t piece) {
    std::memcpy(to.data() + offset, tile.data() + at, piece);
  });
}

std::size_t Pattern::count_different(std::span<const std::byte> actual, int rank, std::size_t first) const {
  return count_against(inputs_[static_cast<std::size_t>(rank)], actual, first, 0);
}

std::size_t Pattern::count_wrong_reduced(std::span<const std::byte> actual, std::size_t first) const {
  return count_against(reduced_, actual, first, mean_tolerance_);
}

std::size_t Pattern::count_against(const Tile& tile, std::span<const std::byte> actual, std::size_t first,
                                   double tolerance) const {
  std::size_t wrong = 0;
  for_each_piece(actual.size(), element_, first, [&](std::size_t offset, std::size_t at, std::size_t piece) {
    if (std::memcmp(actual.data() + offset, tile.data() + at, piece) == 0) return;
    for (std::size_t i = 0; i < piece; i += element_) {
      const std::byte* is = actual.data() + offset + i;
      const std::byte* wanted = tile.data() + at + i;
      if (std::memcmp(is, wanted, element_) == 0) continue;
      const double exact = load(dtype_, wanted);
      const bool close = tolerance > 0 && std::abs(load(dtype_, is) - exact) <= tolerance * std::abs(exact);
      if (!close) ++wrong;
    }
  });
  return wrong;
}

}  // namespace paceline::tools
