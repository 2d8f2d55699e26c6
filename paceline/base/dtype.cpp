#include "paceline/base/dtype.h"

#include <bit>

namespace paceline {

const char* to_string(Dtype dtype) {
  switch (dtype) {
    case Dtype::Float32: return "float32";
    case Dtype::Float64: return "float64";
    case Dtype::Float16: return "float16";
    case Dtype::BFloat16: return "bfloat16";
    case Dtype::Int32: return "int32";
    case Dtype::Int64: return "int64";
    case Dtype::UInt8: return "uint8";
  }
  return "unknown";
}

float to_float(BFloat16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }

BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return {static_cast<std::uint16_t>((bits >> 16) | 0x40)};  // keep it a (quiet) NaN
  return {static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}

float to_float(Half value) {
  const std::uint32_t sign = std::uint32_t{value.bits} << 16 & 0x80000000u;
  const std::uint32_t exponent = value.bits >> 10 & 0x1F;
  const std::uint32_t mantissa = value.bits & 0x3FF;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24f) | sign);
  }
  if (exponent == 31)
    return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0));
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

Half to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  const auto with_sign = [sign](std::uint32_t half) { return Half{static_cast<std::uint16_t>(sign | half)}; };
  if (magnitude > 0x7F800000) return with_sign(0x7E00 | (magnitude >> 13 & 0x3FF));
  if (magnitude >= 0x47800000) return with_sign(0x7C00);  // 65536 and more
  if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 leaves the rounded subnormal in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return with_sign(std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5f));
  }
  const std::uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return with_sign((rounded >> 13) - (112u << 10));
}

}  // namespace paceline
