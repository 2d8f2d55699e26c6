#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "paceline/tools/bench/names.h"
#include "paceline/tools/bench/report.h"

namespace paceline::tools {
namespace {

constexpr double kWidth = 870, kHeight = 830, kLeft = 90, kRight = 840;
constexpr const char* kInk = "#333333";
constexpr const char* kGrid = "#e6e6e6";

/// A line of the plot.
struct Series {
  Place place;
  bool limit;  // the roofline of the other one
  const char* colour;
};
constexpr Series kSeries[] = {{Place::OutOfPlace, false, "#c8561b"},
                              {Place::OutOfPlace, true, "#c8561b"},
                              {Place::InPlace, false, "#1b6ac8"},
                              {Place::InPlace, true, "#1b6ac8"}};

using Points = std::vector<std::pair<double, double>>;
/// The value of a result, or none; the second argument asks for the limit.
using Value = std::function<std::optional<double>(const BenchResult&, bool)>;

/// A logarithmic axis over whole powers of `base`.
class Axis {
 public:
  Axis(double base, double least, double most, double from, double to)
      : base_(base),
        first_(std::floor(std::log(least) / std::log(base) + 1e-9)),
        last_(std::max(first_ + 1, std::ceil(std::log(most) / std::log(base) - 1e-9))),
        from_(from),
        to_(to) {}

  double at(double value) const {
    return from_ + (std::log(value) / std::log(base_) - first_) / (last_ - first_) * (to_ - from_);
  }
  double from() const { return from_; }
  double to() const { return to_; }
  /// Powers of the base that are marked: not more than some ten.
  std::vector<double> ticks() const {
    const double every = std::ceil((last_ - first_) / 10);
    std::vector<double> values;
    for (double power = first_; power <= last_; power += every) values.push_back(std::pow(base_, power));
    return values;
  }

 private:
  double base_, first_, last_, from_, to_;
};

Points points_of(const BenchReport& report, const Series& series, const Value& value);
std::string title(const BenchReport& report);
std::string legend(const BenchReport& report, const Value& value, double y);
std::string panel(const BenchReport& report, std::string_view name, const Value& value, double top, double bottom);
std::string text(double x, double y, std::string_view anchor, std::string_view words, int size = 12);
std::string escaped(std::string_view words);

}  // namespace

std::string bench_plot(const BenchReport& report) {
  const Value time_us = [](const BenchResult& result, bool limit) -> std::optional<double> {
    return limit ? result.roofline_us : result.p50_us;
  };
  const Value busbw = [](const BenchResult& result, bool limit) -> std::optional<double> {
    if (!limit) return result.busbw_gbps;
    if (!result.roofline_fraction || *result.roofline_fraction <= 0) return std::nullopt;
    return result.busbw_gbps / *result.roofline_fraction;
  };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" fill=\"{2}\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      kWidth, kHeight, kInk);
  svg += title(report) + legend(report, time_us, 76);
  svg += panel(report, "time of a call, p50 of the slowest rank (us)", time_us, 120, 420);
  svg += panel(report, "bus bandwidth (GB/s)", busbw, 480, 780);
  return svg + text((kLeft + kRight) / 2, 818, "middle", "size (bytes; K, M and G are binary)") + "</svg>\n";
}

namespace {

std::string title(const BenchReport& report) {
  const BenchOptions& options = report.options;
  const BenchFacts& facts = report.facts;
  const std::string detail = detail_text(options);
  return text(kLeft, 30, "start",
              fmt::format("{} of {}{}, {} ranks on {} cores", options.collective->name,
                          paceline::to_string(options.dtype), detail == "-" ? "" : ", " + detail, facts.ranks,
                          facts.cores),
              18) +
         text(kLeft, 50, "start",
              fmt::format("{}, transport {}, {} buffers{}, kernels {}, {}", facts.host, facts.transport,
                          to_string(options.buffers), options.dirty ? ", dirty" : "", facts.kernel, facts.started));
}

std::string legend(const BenchReport& report, const Value& value, double y) {
  std::string svg;
  double x = kLeft;
  for (const Series& series : kSeries) {
    if (points_of(report, series, value).empty()) continue;
    svg += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{}\" stroke-width=\"2\"{}/>\n", x, y,
                       x + 28, y, series.colour, series.limit ? " stroke-dasharray=\"6 4\"" : "");
    svg += text(x + 34, y + 4, "start",
                fmt::format("{}{}", series.place == Place::InPlace ? "in place" : "out of place",
                            series.limit ? ", its limit: the kernel alone" : ""));
    x += series.limit ? 265 : 120;
  }
  return svg;
}

std::string panel(const BenchReport& report, std::string_view name, const Value& value, double top, double bottom) {
  Points all;
  for (const Series& series : kSeries) {
    const Points points = points_of(report, series, value);
    all.insert(all.end(), points.begin(), points.end());
  }
  if (all.empty()) return text(kLeft, top + 20, "start", fmt::format("{}: nothing to draw", name));
  const auto by_size = [](const auto& a, const auto& b) { return a.first < b.first; };
  const auto by_value = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto [least_x, most_x] = std::minmax_element(all.begin(), all.end(), by_size);
  const auto [least_y, most_y] = std::minmax_element(all.begin(), all.end(), by_value);
  const Axis x(2, least_x->first, most_x->first, kLeft, kRight), y(10, least_y->second, most_y->second, bottom, top);

  std::string svg = text(kLeft, top - 10, "start", name, 13);
  for (const double size : x.ticks()) {
    svg += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"{3}\"/>\n", x.at(size), top,
                       bottom, kGrid);
    svg += text(x.at(size), bottom + 18, "middle", size_text(static_cast<std::size_t>(size)));
  }
  for (const double level : y.ticks()) {
    svg += fmt::format("<line x1=\"{1}\" y1=\"{0:.1f}\" x2=\"{2}\" y2=\"{0:.1f}\" stroke=\"{3}\"/>\n", y.at(level),
                       kLeft, kRight, kGrid);
    svg += text(kLeft - 8, y.at(level) + 4, "end", fmt::format("{:g}", level));
  }
  for (const Series& series : kSeries) {
    std::string path, marks;
    for (const auto& [size, level] : points_of(report, series, value)) {
      path += fmt::format("{:.1f},{:.1f} ", x.at(size), y.at(level));
      marks += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x.at(size), y.at(level),
                           series.colour);
    }
    if (path.empty()) continue;
    svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>\n", path,
                       series.colour, series.limit ? " stroke-dasharray=\"6 4\"" : "");
    if (!series.limit) svg += marks;
  }
  return svg;
}

Points points_of(const BenchReport& report, const Series& series, const Value& value) {
  Points points;
  for (const BenchResult& result : report.results) {
    if (result.row.place != series.place || result.row.bytes == 0) continue;
    const std::optional<double> found = value(result, series.limit);
    if (found && *found > 0) points.emplace_back(static_cast<double>(result.row.bytes), *found);
  }
  return points;
}

std::string text(double x, double y, std::string_view anchor, std::string_view words, int size) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y, anchor,
                     size, escaped(words));
}

std::string escaped(std::string_view words) {
  std::string safe;
  for (const char c : words) safe += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return safe;
}

}  // namespace
}  // namespace paceline::tools
