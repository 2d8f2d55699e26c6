#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace paceline {

/// Fills `to` with bytes that nobody can foresee, from the system. Throws System.
void random_bytes(std::span<std::byte> to);
std::uint64_t random_number();
/// 16 hexadecimal digits for each of so many random numbers.
std::string random_digits(int numbers);

}  // namespace paceline
