#include "paceline/observe/text.h"

#include <fmt/format.h>

#include <cmath>

namespace paceline {
namespace {

/// Three significant digits without an exponent, for numbers below 1000 and whole ones above.
std::string three_digits(double value) {
  const double size = std::abs(value);
  const int decimals = size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}", value, decimals);
}

}  // namespace

std::string duration_text(double seconds) {
  if (seconds >= 1) return three_digits(seconds) + " s";
  if (seconds >= 1e-3) return three_digits(seconds * 1e3) + " ms";
  return three_digits(seconds * 1e6) + " us";
}

std::string bytes_text(double bytes) {
  constexpr double kKibi = 1024, kMebi = kKibi * 1024, kGibi = kMebi * 1024;
  if (bytes >= kGibi) return three_digits(bytes / kGibi) + " GiB";
  if (bytes >= kMebi) return three_digits(bytes / kMebi) + " MiB";
  if (bytes >= kKibi) return three_digits(bytes / kKibi) + " KiB";
  return fmt::format("{:.0f} B", bytes);
}

std::string share_text(double share) {
  return fmt::format("{:.{}f} %", share * 100, share != 0 && std::abs(share) < 0.0995 ? 1 : 0);
}

std::string quantity_text(double quantity) {
  if (quantity < 999.5 && quantity != std::floor(quantity)) return three_digits(quantity);
  const std::string digits = fmt::format("{:.0f}", quantity);
  std::string grouped;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

double share_of(double part, double whole) { return whole > 0 ? part / whole : 0; }

}  // namespace paceline
