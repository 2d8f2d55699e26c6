#include "paceline/base/kernels.h"

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

// Each target below is compiled once; SSSE3 and AVX3_DL add nothing here over their neighbours.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "paceline/base/kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace paceline {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// How elements of type T are loaded to, and stored from, the vectors that are added up.
template <class T>
struct Elements {
  using Lane = T;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const T* from) {
    return hn::LoadU(d, from);
  }
  template <class D>
  static HWY_INLINE void store(hn::Vec<D> v, D d, T* to) {
    hn::StoreU(v, d, to);
  }
};

template <>
struct Elements<BFloat16> {
  using Lane = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const BFloat16* from) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
  }
  template <class D>
  static HWY_INLINE void store(hn::Vec<D> v, D, BFloat16* to) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> di32;
    const auto bits = hn::BitCast(d32, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFF))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d32, 0x40));
    const auto half = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, rounded);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di32, half)), d16, reinterpret_cast<std::uint16_t*>(to));
  }
};

template <>
struct Elements<Half> {
  using Lane = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> load([[maybe_unused]] D d, const Half* from) {
#if HWY_TARGET <= HWY_AVX2
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
#else  // Highway's emulation does not round to nearest
    HWY_ALIGN float lanes[hn::MaxLanes(d)];
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = to_float(from[i]);
    return hn::Load(d, lanes);
#endif
  }
  template <class D>
  static HWY_INLINE void store(hn::Vec<D> v, [[maybe_unused]] D d, Half* to) {
#if HWY_TARGET <= HWY_AVX2
    const hn::Rebind<hwy::float16_t, D> d16;
    hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(to));
#else
    HWY_ALIGN float lanes[hn::MaxLanes(d)];
    hn::Store(v, d, lanes);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) to[i] = to_half(lanes[i]);
#endif
  }
};

template <bool kMin, class D>
HWY_INLINE hn::Vec<D> extreme(D, hn::Vec<D> a, hn::Vec<D> b) {
  const auto v = kMin ? hn::Min(a, b) : hn::Max(a, b);
  if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
    return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, v));
  } else {
    return v;
  }
}

struct SumOf {
  static constexpr bool kScaled = false, kWeighted = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> add(D, hn::Vec<D> sum, hn::Vec<D> v, hn::Vec<D>) {
    return hn::Add(sum, v);
  }
};
struct MeanOf : SumOf {
  static constexpr bool kScaled = true;
};
struct WeightedMeanOf {
  static constexpr bool kScaled = true, kWeighted = true;
  template <class D>
  static HWY_INLINE hn::Vec<D> add(D, hn::Vec<D> sum, hn::Vec<D> v, hn::Vec<D> weight) {
    return hn::MulAdd(v, weight, sum);
  }
};
template <bool kMin>
struct ExtremeOf {
  static constexpr bool kScaled = false, kWeighted = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> add(D d, hn::Vec<D> sum, hn::Vec<D> v, hn::Vec<D>) {
    return extreme<kMin>(d, sum, v);
  }
};

template <class T>
struct Call {
  std::span<const std::byte* const> sources;
  std::span<std::byte* const> destinations;
  std::span<const double> weights;  // of sources; used by the weighted mean
  typename Elements<T>::Lane scale;

  const T* source(std::size_t s) const { return reinterpret_cast<const T*>(sources[s]); }
  T* destination(std::size_t s) const { return reinterpret_cast<T*>(destinations[s]); }
};

// kUnroll vectors at position `at`, from every source, in registers, to every destination.
template <class How, std::size_t kUnroll, class T, class D>
HWY_INLINE void reduce_block(const Call<T>& call, D d, std::size_t at) {
  using V = hn::Vec<D>;
  using Lane = typename Elements<T>::Lane;
  const std::size_t lanes = hn::Lanes(d);
  const auto weight_of = [&](std::size_t s) {
    return How::kWeighted ? hn::Set(d, static_cast<Lane>(call.weights[s])) : hn::Zero(d);
  };
  V sum[kUnroll];
  const T* first = call.source(0) + at;
  for (std::size_t u = 0; u < kUnroll; ++u) {
    sum[u] = Elements<T>::load(d, first + u * lanes);
    if constexpr (How::kWeighted) sum[u] = hn::Mul(sum[u], weight_of(0));
  }
  for (std::size_t s = 1; s < call.sources.size(); ++s) {
    const T* source = call.source(s) + at;
    const V weight = weight_of(s);
    for (std::size_t u = 0; u < kUnroll; ++u) {
      sum[u] = How::add(d, sum[u], Elements<T>::load(d, source + u * lanes), weight);
    }
  }
  if constexpr (How::kScaled) {
    const V scale = hn::Set(d, call.scale);
    for (std::size_t u = 0; u < kUnroll; ++u) sum[u] = hn::Mul(sum[u], scale);
  }
  for (std::size_t s = 0; s < call.destinations.size(); ++s) {
    T* destination = call.destination(s) + at;
    for (std::size_t u = 0; u < kUnroll; ++u) Elements<T>::store(sum[u], d, destination + u * lanes);
  }
}

// Fewer elements than a vector has, at position `at`. They go through the same operations as in a whole vector, so
// that cutting a buffer elsewhere changes no bit: under a mask where stores have one, else one at a time.
template <class How, class T, class D>
HWY_INLINE void reduce_tail(const Call<T>& call, [[maybe_unused]] D d, std::size_t at, std::size_t count) {
  using Lane = typename Elements<T>::Lane;
#if HWY_TARGET <= HWY_AVX3
  if constexpr (std::is_same_v<T, Lane> && sizeof(T) >= 4) {
    const auto mask = hn::FirstN(d, count);
    const auto weighted = [&](std::size_t s) {
      const auto values = hn::MaskedLoad(mask, d, call.source(s) + at);
      return std::pair(values, How::kWeighted ? hn::Set(d, static_cast<Lane>(call.weights[s])) : hn::Zero(d));
    };
    auto [sum, first_weight] = weighted(0);
    if constexpr (How::kWeighted) sum = hn::Mul(sum, first_weight);
    for (std::size_t s = 1; s < call.sources.size(); ++s) {
      const auto [values, weight] = weighted(s);
      sum = How::add(d, sum, values, weight);
    }
    if constexpr (How::kScaled) sum = hn::Mul(sum, hn::Set(d, call.scale));
    for (std::size_t s = 0; s < call.destinations.size(); ++s) hn::BlendedStore(sum, mask, d, call.destination(s) + at);
    return;
  }
#endif
  const hn::CappedTag<Lane, 1> one;
  for (const std::size_t end = at + count; at < end; ++at) reduce_block<How, 1>(call, one, at);
}

template <class How, class T>
HWY_INLINE void reduce_all(const Call<T>& call, std::size_t count) {
  const hn::ScalableTag<typename Elements<T>::Lane> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t at = 0;
  for (; at + 4 * lanes <= count; at += 4 * lanes) reduce_block<How, 4>(call, d, at);
  for (; at + lanes <= count; at += lanes) reduce_block<How, 1>(call, d, at);
  // Half a vector where it is enough: it is less likely to touch a cache line more.
  if (at < count && count - at <= lanes / 2) reduce_tail<How>(call, hn::Half<decltype(d)>(), at, count - at);
  else if (at < count) reduce_tail<How>(call, d, at, count - at);
}

// Exact: the sum of any number of ranks' integers fits, and division rounds toward zero.
template <class T>
void integer_mean(const Call<T>& call, std::size_t count) {
  double total = 0;
  for (const double w : call.weights) total += w;
  for (std::size_t i = 0; i < count; ++i) {
    T mean;
    if (call.weights.empty()) {
      __int128 sum = 0;
      for (std::size_t s = 0; s < call.sources.size(); ++s) sum += call.source(s)[i];
      mean = static_cast<T>(sum / static_cast<__int128>(call.sources.size()));
    } else {
      long double sum = 0;
      for (std::size_t s = 0; s < call.sources.size(); ++s) {
        sum += static_cast<long double>(call.weights[s]) * static_cast<long double>(call.source(s)[i]);
      }
      mean = static_cast<T>(sum / static_cast<long double>(total));
    }
    for (std::size_t s = 0; s < call.destinations.size(); ++s) call.destination(s)[i] = mean;
  }
}

template <class T>
void reduce_typed(ReduceOp op, Call<T> call, std::size_t count, double total) {
  switch (op) {
    case ReduceOp::Sum: reduce_all<SumOf>(call, count); return;
    case ReduceOp::Min: reduce_all<ExtremeOf<true>>(call, count); return;
    case ReduceOp::Max: reduce_all<ExtremeOf<false>>(call, count); return;
    case ReduceOp::Mean: break;
  }
  using Lane = typename Elements<T>::Lane;
  if constexpr (hwy::IsFloat<Lane>()) {
    call.scale = static_cast<Lane>(1.0 / total);
    if (call.weights.empty()) reduce_all<MeanOf>(call, count);
    else reduce_all<WeightedMeanOf>(call, count);
  } else {
    integer_mean(call, count);
  }
}

// `total` is what a Mean of floating-point numbers is divided by.
void reduce_on_target(ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources,
                      std::span<std::byte* const> destinations, std::size_t count, std::span<const double> weights,
                      double total) {
  switch (dtype) {
    case Dtype::Float32: return reduce_typed<float>(op, {sources, destinations, weights, 1}, count, total);
    case Dtype::Float64: return reduce_typed<double>(op, {sources, destinations, weights, 1}, count, total);
    case Dtype::Float16: return reduce_typed<Half>(op, {sources, destinations, weights, 1}, count, total);
    case Dtype::BFloat16: return reduce_typed<BFloat16>(op, {sources, destinations, weights, 1}, count, total);
    case Dtype::Int32: return reduce_typed<std::int32_t>(op, {sources, destinations, weights, 1}, count, total);
    case Dtype::Int64: return reduce_typed<std::int64_t>(op, {sources, destinations, weights, 1}, count, total);
    case Dtype::UInt8: return reduce_typed<std::uint8_t>(op, {sources, destinations, weights, 1}, count, total);
  }
}

template <class From, class To, class D>
HWY_INLINE void convert_block(D d, const From* from, To* to) {
  Elements<To>::store(Elements<From>::load(d, from), d, to);
}

template <class From, class To>
void convert_floats(const std::byte* source, std::byte* destination, std::size_t count) {
  const auto* from = reinterpret_cast<const From*>(source);
  auto* to = reinterpret_cast<To*>(destination);
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t at = 0;
  for (; at + lanes <= count; at += lanes) convert_block(d, from + at, to + at);
  const hn::CappedTag<float, 1> one;
  for (; at < count; ++at) convert_block(one, from + at, to + at);
}

// Between float and another type.
void convert_on_target(Dtype from_type, const std::byte* from, Dtype to_type, std::byte* to, std::size_t count) {
  if (from_type == Dtype::Float16) return convert_floats<Half, float>(from, to, count);
  if (from_type == Dtype::BFloat16) return convert_floats<BFloat16, float>(from, to, count);
  if (to_type == Dtype::Float16) return convert_floats<float, Half>(from, to, count);
  if (to_type == Dtype::BFloat16) return convert_floats<float, BFloat16>(from, to, count);
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace paceline
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "paceline/base/bytes.h"

namespace paceline {

HWY_EXPORT(reduce_on_target);
HWY_EXPORT(convert_on_target);
HWY_EXPORT(target_name);

namespace {

using Kernel = void (*)(ReduceOp, Dtype, std::span<const std::byte* const>, std::span<std::byte* const>, std::size_t,
                        std::span<const double>, double);

// Chosen once: Highway's own choice at each call costs as much as reducing a cache line.
Kernel kernel() {
  static const Kernel chosen = [] {
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return Kernel{HWY_DYNAMIC_DISPATCH(reduce_on_target)};
  }();
  return chosen;
}

/// The sources of a weighted mean that are read. One of weight 0 is left out rather than multiplied: it may hold NaN.
struct Weighted {
  std::vector<const std::byte*> sources;
  std::vector<double> weights;
  double total = 0;

  Weighted(std::span<const std::byte* const> all, std::span<const double> all_weights) {
    for (std::size_t s = 0; s < all.size(); ++s) {
      if (all_weights[s] == 0) continue;
      sources.push_back(all[s]);
      weights.push_back(all_weights[s]);
    }
    scale_weights(weights);
    for (const double weight : weights) total += weight;
  }
};

}  // namespace

void reduce(ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources,
            std::span<std::byte* const> destinations, std::size_t count, std::span<const double> weights) {
  // Equal weights are the plain mean, which has a cheaper loop.
  if (op != ReduceOp::Mean || is_plain_mean(weights)) {
    return kernel()(op, dtype, sources, destinations, count, {}, static_cast<double>(sources.size()));
  }
  const Weighted used(sources, weights);
  if (!used.sources.empty()) {
    return kernel()(op, dtype, used.sources, destinations, count, used.weights, used.total);
  }
  if (count == 0) return;  // then a destination may be null
  for (std::byte* destination : destinations) std::memset(destination, 0, count * size_of(dtype));
}

void reduce_part(Dtype dtype, std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                 std::size_t count, std::span<const double> weights, double total) {
  if (std::all_of(weights.begin(), weights.end(), [](double w) { return w == 1; })) {
    return kernel()(ReduceOp::Mean, dtype, sources, destinations, count, {}, total);
  }
  std::vector<const std::byte*> used;
  std::vector<double> used_weights;
  for (std::size_t s = 0; s < sources.size(); ++s) {
    if (weights[s] == 0) continue;
    used.push_back(sources[s]);
    used_weights.push_back(weights[s]);
  }
  kernel()(ReduceOp::Mean, dtype, used, destinations, count, used_weights, total);
}

// By way of floats, a block that stays in cache at a time.
void convert(Dtype from_type, std::span<const std::byte> from, Dtype to_type, std::span<std::byte> to) {
  constexpr std::size_t kBlock = 1024;
  std::array<float, kBlock> floats;
  const std::size_t count = from.size() / size_of(from_type);
  if (from_type == to_type) return copy_bytes(to.data(), from.data(), from.size());
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t block = std::min(kBlock, count - at);
    const std::byte* const source = from.data() + at * size_of(from_type);
    std::byte* const destination = to.data() + at * size_of(to_type);
    auto* const values = reinterpret_cast<std::byte*>(floats.data());
    const std::byte* read = values;
    if (from_type == Dtype::Float32) {
      read = source;
    } else if (from_type == Dtype::Float64) {
      std::copy_n(reinterpret_cast<const double*>(source), block, floats.data());
    } else {
      HWY_DYNAMIC_DISPATCH(convert_on_target)
      (from_type, source, Dtype::Float32, to_type == Dtype::Float32 ? destination : values, block);
    }
    if (to_type == Dtype::Float64) {
      std::copy_n(reinterpret_cast<const float*>(read), block, reinterpret_cast<double*>(destination));
    } else if (to_type == Dtype::Float32) {
      if (from_type == Dtype::Float64) copy_bytes(destination, values, block * sizeof(float));
    } else {
      HWY_DYNAMIC_DISPATCH(convert_on_target)(Dtype::Float32, read, to_type, destination, block);
    }
  }
}

// A power of two, so that no bit of a mean changes.
void scale_weights(std::span<double> weights) {
  if (weights.empty()) return;
  const double largest = *std::max_element(weights.begin(), weights.end());
  if (largest == 0) return;
  const int exponent = std::ilogb(largest) + 1 + static_cast<int>(std::bit_width(weights.size()));
  for (double& weight : weights) weight = std::scalbn(weight, -exponent);
}

bool is_plain_mean(std::span<const double> weights) {
  return std::none_of(weights.begin(), weights.end(), [&](double w) { return w != weights[0] || w == 0; });
}

const char* kernel_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

const char* to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum: return "sum";
    case ReduceOp::Mean: return "mean";
    case ReduceOp::Min: return "min";
    case ReduceOp::Max: return "max";
  }
  return "unknown";
}

}  // namespace paceline
#endif  // HWY_ONCE
