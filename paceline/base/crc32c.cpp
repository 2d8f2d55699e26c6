#include "paceline/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace paceline {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected

/// kTables[k][b]: what byte b becomes under k + 1 bytes of zeros.
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

/// Moves a checksum over a fixed number of zero bytes, so that lanes computed beside each other can be joined:
/// crc(ab) = shift(crc(a), length of b) ^ crc(b).
class Shift {
 public:
  constexpr explicit Shift(std::size_t bytes) {
    for (std::size_t k = 0; k < 4; ++k) {
      for (std::uint32_t byte = 0; byte < 256; ++byte) table_[k][byte] = 0;
      for (std::uint32_t bit = 0; bit < 8; ++bit) {
        std::uint32_t crc = std::uint32_t{1} << (8 * k + bit);
        for (std::size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ kTables[0][crc & 0xFF];
        for (std::uint32_t byte = 0; byte < 256; ++byte) {
          if ((byte >> bit & 1) != 0) table_[k][byte] ^= crc;
        }
      }
    }
  }
  std::uint32_t operator()(std::uint32_t crc) const {
    return table_[0][crc & 0xFF] ^ table_[1][crc >> 8 & 0xFF] ^ table_[2][crc >> 16 & 0xFF] ^ table_[3][crc >> 24];
  }

 private:
  std::array<std::array<std::uint32_t, 256>, 4> table_{};
};

#if defined(__x86_64__)

std::uint64_t word_at(const std::byte* data) {
  std::uint64_t word = 0;
  std::memcpy(&word, data, sizeof word);
  return word;
}

// The instruction gives a result every cycle but takes three, so three lanes go at once.
template <std::size_t kLane>
__attribute__((target("sse4.2"))) const std::byte* three_lanes(const std::byte* data, const std::byte* end,
                                                               const Shift& shift, std::uint64_t& crc) {
  while (static_cast<std::size_t>(end - data) >= 3 * kLane) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      crc = _mm_crc32_u64(crc, word_at(data + i));
      second = _mm_crc32_u64(second, word_at(data + kLane + i));
      third = _mm_crc32_u64(third, word_at(data + 2 * kLane + i));
    }
    crc = shift(static_cast<std::uint32_t>(crc)) ^ second;
    crc = shift(static_cast<std::uint32_t>(crc)) ^ third;
    data += 3 * kLane;
  }
  return data;
}

__attribute__((target("sse4.2"))) std::uint64_t to_the_end(const std::byte* at, const std::byte* end,
                                                           std::uint64_t crc) {
  for (; end - at >= 8; at += 8) crc = _mm_crc32_u64(crc, word_at(at));
  auto last = static_cast<std::uint32_t>(crc);
  for (; at != end; ++at) last = _mm_crc32_u8(last, static_cast<unsigned char>(*at));
  return last;
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::span<const std::byte> data, std::uint32_t before) {
  constexpr std::size_t kLong = 4096, kShort = 256;
  static const Shift kOverLong(kLong), kOverShort(kShort);
  const std::byte* at = data.data();
  const std::byte* const end = at + data.size();
  std::uint64_t crc = ~before;
  at = three_lanes<kLong>(at, end, kOverLong, crc);
  at = three_lanes<kShort>(at, end, kOverShort, crc);
  return ~static_cast<std::uint32_t>(to_the_end(at, end, crc));
}

/// x^n modulo the polynomial, as carry-less multiplication of reflected words takes it.
constexpr std::uint64_t power_of_x(std::size_t n) {
  std::uint32_t value = 0x80000000;  // x^0
  for (std::size_t i = 0; i < n; ++i) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
  return std::uint64_t{value} << 1;
}

// Replaces 128 bits by ones that have the same remainder but lie `kBits` further on (Gopal et al., "Fast CRC
// computation for generic polynomials using PCLMULQDQ", 2009). Four at a time in a register of 512 bits.
template <std::size_t kBits>
__attribute__((target("avx512f,vpclmulqdq"))) __m512i fold(__m512i from, __m512i onto) {
  constexpr std::uint64_t kLow = power_of_x(kBits + 32), kHigh = power_of_x(kBits - 32);
  const __m512i factors = _mm512_set4_epi64(kHigh, kLow, kHigh, kLow);
  const __m512i low = _mm512_clmulepi64_epi128(from, factors, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(from, factors, 0x11);
  return _mm512_ternarylogic_epi64(low, high, onto, 0x96);  // exclusive or of all three
}

__attribute__((target("avx512f,vpclmulqdq,sse4.2"))) std::uint32_t by_folding(std::span<const std::byte> data,
                                                                              std::uint32_t before) {
  constexpr std::size_t kStep = 256;
  const std::byte* at = data.data();
  const std::byte* const end = at + data.size();
  __m512i a =
      _mm512_xor_si512(_mm512_loadu_si512(at), _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(~before))));
  __m512i b = _mm512_loadu_si512(at + 64), c = _mm512_loadu_si512(at + 128), d = _mm512_loadu_si512(at + 192);
  for (at += kStep; static_cast<std::size_t>(end - at) >= kStep; at += kStep) {
    a = fold<8 * kStep>(a, _mm512_loadu_si512(at));
    b = fold<8 * kStep>(b, _mm512_loadu_si512(at + 64));
    c = fold<8 * kStep>(c, _mm512_loadu_si512(at + 128));
    d = fold<8 * kStep>(d, _mm512_loadu_si512(at + 192));
  }
  const __m512i all = fold<512>(fold<512>(fold<512>(a, b), c), d);
  alignas(64) std::array<std::byte, 64> rest{};
  _mm512_store_si512(rest.data(), all);
  return ~static_cast<std::uint32_t>(to_the_end(at, end, to_the_end(rest.data(), rest.data() + rest.size(), 0)));
}

#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  static const bool folds =
      has_instruction && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
  if (folds && data.size() >= 512) return by_folding(data, before);
  if (has_instruction) return by_instruction(data, before);
#endif
  return crc32c_by_table(data, before);
}

std::uint32_t crc32c_by_table(std::span<const std::byte> data, std::uint32_t before) {
  std::uint32_t crc = ~before;
  std::size_t i = 0;
  for (; i + 8 <= data.size(); i += 8) {
    std::uint32_t next = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      const auto byte = static_cast<std::uint8_t>(data[i + k]);
      next ^= kTables[7 - k][k < 4 ? byte ^ (crc >> (8 * k) & 0xFF) : byte];
    }
    crc = next;
  }
  for (; i < data.size(); ++i) crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<std::uint8_t>(data[i])) & 0xFF];
  return ~crc;
}

}  // namespace paceline
