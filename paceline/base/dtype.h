#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace paceline {

enum class Dtype : std::uint8_t { Float32, Float64, Float16, BFloat16, Int32, Int64, UInt8 };

/// IEEE binary16 and bfloat16 as bits. Paceline sums them in float32 and rounds once, to nearest even.
struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

constexpr std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::Float64:
    case Dtype::Int64: return 8;
    case Dtype::Float32:
    case Dtype::Int32: return 4;
    case Dtype::Float16:
    case Dtype::BFloat16: return 2;
    case Dtype::UInt8: return 1;
  }
  return 0;
}

const char* to_string(Dtype dtype);

/// The Dtype of a C++ type; a type without one does not compile.
template <class T>
constexpr Dtype dtype_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>) return Dtype::Float32;
  else if constexpr (std::is_same_v<U, double>) return Dtype::Float64;
  else if constexpr (std::is_same_v<U, Half>) return Dtype::Float16;
  else if constexpr (std::is_same_v<U, BFloat16>) return Dtype::BFloat16;
  else if constexpr (std::is_same_v<U, std::int32_t>) return Dtype::Int32;
  else if constexpr (std::is_same_v<U, std::int64_t>) return Dtype::Int64;
  else {
    static_assert(std::is_same_v<U, std::uint8_t>, "no Dtype for this type");
    return Dtype::UInt8;
  }
}

float to_float(Half value);
Half to_half(float value);  ///< Rounds to nearest even; overflow gives infinity, NaN stays NaN.
float to_float(BFloat16 value);
BFloat16 to_bfloat16(float value);  ///< As to_half.

}  // namespace paceline
