#pragma once

#include <string>

// Internal: figures as people read them, with three significant digits.

namespace paceline {

/// "1.23 s", "45.6 ms" or "7.89 us".
std::string duration_text(double seconds);
/// "1.50 GiB", "64.0 KiB" or "12 B".
std::string bytes_text(double bytes);
/// 0.123 is "12 %", 0.0123 is "1.2 %".
std::string share_text(double share);
/// "12,345", "1.23" or, for a whole number, "7".
std::string quantity_text(double quantity);
/// `part` / `whole`, 0 when `whole` is 0.
double share_of(double part, double whole);

}  // namespace paceline
