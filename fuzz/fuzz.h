// What fuzz targets share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "paceline/base/error.h"

/// Stays on in every build type: what a fuzz target finds is a broken promise.
#define FUZZ_CHECK(condition)                                                      \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

namespace paceline::fuzz {

/// The input, taken from its front.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  template <class Number>
  Number number() {
    Number value{};
    const std::size_t bytes = std::min(sizeof value, rest_.size());
    if (bytes > 0) std::memcpy(&value, rest_.data(), bytes);
    rest_.remove_prefix(bytes);
    return value;
  }
  /// `count` bytes, or what is left.
  std::string_view bytes(std::size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() { return bytes(rest_.size()); }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

inline std::span<const std::byte> as_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

/// Calls `parse`. It may refuse what it reads with this error, and with no other.
template <class Parse>
bool accepts(ErrorCode refusal, Parse&& parse) {
  try {
    parse();
    return true;
  } catch (const Error& error) {
    FUZZ_CHECK(error.code() == refusal);
    FUZZ_CHECK(!error.message().empty());
    return false;
  }
}

}  // namespace paceline::fuzz
