#include "paceline/base/finite.h"

#include <algorithm>
#include <cstdint>

// Each target below is compiled once, as in kernels.cpp.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "paceline/base/finite.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace paceline {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whether an exponent is all ones, which is the largest that there is.
template <class Bits>
HWY_INLINE bool any_not_finite(const Bits* values, std::size_t count, Bits exponent) {
  const hn::ScalableTag<Bits> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto all_ones = hn::Set(d, exponent);
  const auto at = [&](const Bits* from) { return hn::And(hn::LoadU(d, from), all_ones); };
  auto a = hn::Zero(d), b = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    a = hn::Max(a, hn::Max(at(values + i), at(values + i + lanes)));
    b = hn::Max(b, hn::Max(at(values + i + 2 * lanes), at(values + i + 3 * lanes)));
  }
  for (; i < count; ++i) a = hn::Max(a, hn::Set(d, static_cast<Bits>(values[i] & exponent)));
  return !hn::AllFalse(d, hn::Eq(hn::Max(a, b), all_ones));
}

// Looks for the place only in a block that has one.
template <class Bits>
std::optional<std::size_t> find(std::span<const std::byte> data, Bits exponent) {
  constexpr std::size_t kBlock = 4096;
  const auto* values = reinterpret_cast<const Bits*>(data.data());
  const std::size_t count = data.size() / sizeof(Bits);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t end = std::min(count, begin + kBlock);
    if (!any_not_finite(values + begin, end - begin, exponent)) continue;
    const auto* first = std::find_if(values + begin, values + end, [&](Bits v) { return (v & exponent) == exponent; });
    return static_cast<std::size_t>(first - values);
  }
  return std::nullopt;
}

std::optional<std::size_t> find_on_target(Dtype dtype, std::span<const std::byte> data) {
  switch (dtype) {
    case Dtype::Float32: return find<std::int32_t>(data, 0x7F800000);
    case Dtype::Float64: return find<std::int64_t>(data, 0x7FF0000000000000);
    case Dtype::Float16: return find<std::int16_t>(data, 0x7C00);
    case Dtype::BFloat16: return find<std::int16_t>(data, 0x7F80);
    case Dtype::Int32:
    case Dtype::Int64:
    case Dtype::UInt8: return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace HWY_NAMESPACE
}  // namespace paceline
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace paceline {

HWY_EXPORT(find_on_target);

std::optional<std::size_t> first_not_finite(Dtype dtype, std::span<const std::byte> data) {
  return HWY_DYNAMIC_DISPATCH(find_on_target)(dtype, data);
}

}  // namespace paceline
#endif  // HWY_ONCE
