#include "paceline/launch/option_numbers.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>

namespace paceline::launch {

int whole_number(const std::string& option, const std::string& text, int from, int to) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < from || value > to) {
    throw CLI::ValidationError(option, fmt::format("takes a whole number from {} to {}, not \"{}\"", from, to, text));
  }
  return value;
}

}  // namespace paceline::launch
