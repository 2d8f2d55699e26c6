#include "paceline/tools/bench/sizes.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

#include "paceline/base/error.h"

namespace paceline::tools {
namespace {

constexpr std::size_t kMost = std::size_t{1} << 40;
constexpr std::size_t kMostSizes = 1000;
constexpr double kLeastFactor = 1.001;

/// Powers of two by suffix; the short ones are what size_text() writes.
constexpr std::array<std::pair<std::string_view, int>, 13> kSuffixes{{{"G", 30},
                                                                      {"M", 20},
                                                                      {"K", 10},
                                                                      {"", 0},
                                                                      {"B", 0},
                                                                      {"k", 10},
                                                                      {"Ki", 10},
                                                                      {"KiB", 10},
                                                                      {"Mi", 20},
                                                                      {"MiB", 20},
                                                                      {"Gi", 30},
                                                                      {"GiB", 30},
                                                                      {"g", 30}}};

}  // namespace

std::size_t parse_size(std::string_view option, std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return Error(ErrorCode::InvalidArgument, fmt::format("{} takes {}, not \"{}\"", option, why, text));
  };
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range) throw refuse("at most 1024G");
  if (error != std::errc()) throw refuse("a size such as 8, 4K, 128M or 1G");
  const std::string_view suffix = text.substr(static_cast<std::size_t>(end - text.data()));
  for (const auto& [name, power] : kSuffixes) {
    if (name != suffix) continue;
    if (number > kMost >> power) throw refuse("at most 1024G");
    return number << power;
  }
  throw refuse("a size such as 8, 4K, 128M or 1G, with K, M and G for 1024, 1024^2 and 1024^3 bytes");
}

std::string size_text(std::size_t bytes) {
  for (const auto& [name, power] : kSuffixes) {
    const std::size_t one = std::size_t{1} << power;
    if (bytes >= one && bytes % one == 0) return fmt::format("{}{}", bytes >> power, name);
  }
  return "0";
}

std::vector<std::size_t> sizes_in(const SizeRange& range, std::size_t unit) {
  const auto refuse = [](const std::string& message) { return Error(ErrorCode::InvalidArgument, message); };
  if (range.first > range.last) {
    throw refuse(fmt::format("-b {} is more than -e {}; -b is the smallest size and -e the largest",
                             size_text(range.first), size_text(range.last)));
  }
  if (range.step == 0) throw refuse("-i takes a step of at least 1 byte");
  if (!range.step && !(range.factor >= kLeastFactor)) {
    throw refuse(fmt::format("-f takes a factor of at least {}, not {}", kLeastFactor, range.factor));
  }
  std::vector<std::size_t> sizes{range.first};
  double exact = static_cast<double>(range.first);
  while (true) {
    // Steps that lead no multiple further are taken at once: a range may have any number of them.
    const std::size_t from = sizes.back() - range.first + unit - 1;
    if (range.step) {
      const std::size_t steps = from / *range.step + 1;
      exact = static_cast<double>(range.first) + static_cast<double>(steps) * static_cast<double>(*range.step);
    } else {
      exact *= range.factor;
    }
    if (!(exact > 0) || exact > static_cast<double>(range.last)) break;
    const std::size_t size = static_cast<std::size_t>(exact) / unit * unit;
    if (size <= sizes.back()) continue;  // not yet a multiple further
    if (sizes.size() == kMostSizes) {
      throw refuse(fmt::format("more than {} sizes from {} to {}; take a larger {}", kMostSizes, size_text(range.first),
                               size_text(range.last), range.step ? "-i" : "-f"));
    }
    sizes.push_back(size);
  }
  return sizes;
}

}  // namespace paceline::tools
