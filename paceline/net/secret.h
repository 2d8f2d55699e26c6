#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace paceline {

/// What the workers of a job know and nobody else does: 32 bytes. Wiped when it dies.
class Secret {
 public:
  static constexpr std::size_t kBytes = 32;

  /// From the system's random numbers. Throws System.
  static Secret random();
  /// From 64 hexadecimal digits; white space around them is ignored. Throws InvalidArgument, which does not repeat
  /// them.
  static Secret from_hex(std::string_view text);
  /// From a file of that form. Throws InvalidArgument if others than its owner may read it, System if it cannot be
  /// read.
  static Secret from_file(const std::string& path);

  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  std::string hex() const;
  const std::array<unsigned char, kBytes>& bytes() const { return bytes_; }

 private:
  Secret() = default;
  std::array<unsigned char, kBytes> bytes_{};
};

}  // namespace paceline
