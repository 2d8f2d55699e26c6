#include "paceline/base/finite.h"

#include <algorithm>
#include <cstdint>

namespace paceline {
namespace {

/// An exponent of all ones. Looks at blocks without branches, which compilers turn into vector code, and for the place
/// only where there is one.
template <class Bits>
std::optional<std::size_t> find(std::span<const std::byte> data, Bits exponent) {
  constexpr std::size_t kBlock = 4096;
  const auto* values = reinterpret_cast<const Bits*>(data.data());
  const std::size_t count = data.size() / sizeof(Bits);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t end = std::min(count, begin + kBlock);
    Bits bad = 0;
    for (std::size_t i = begin; i < end; ++i) bad |= static_cast<Bits>((values[i] & exponent) == exponent ? 1 : 0);
    if (bad == 0) continue;
    const auto* first = std::find_if(values + begin, values + end, [&](Bits v) { return (v & exponent) == exponent; });
    return static_cast<std::size_t>(first - values);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::size_t> first_not_finite(Dtype dtype, std::span<const std::byte> data) {
  switch (dtype) {
    case Dtype::Float32: return find<std::uint32_t>(data, 0x7F800000u);
    case Dtype::Float64: return find<std::uint64_t>(data, 0x7FF0000000000000u);
    case Dtype::Float16: return find<std::uint16_t>(data, 0x7C00);
    case Dtype::BFloat16: return find<std::uint16_t>(data, 0x7F80);
    case Dtype::Int32:
    case Dtype::Int64:
    case Dtype::UInt8: return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace paceline
