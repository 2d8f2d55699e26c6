#include <fmt/format.h>

#include <cstdint>

#include "paceline/tools/bench/names.h"
#include "paceline/tools/bench/report.h"

namespace paceline::tools {
namespace {

constexpr const char* kLine =
    "{:>12} {:>11} {:>8} {:>6} {:>5} {:>11} {:>11} {:>8} {:>8} {:>7} {:>9} {:>6} {:>8} {:>7}\n";

std::string sampling_text(const BenchOptions& options);
std::uint64_t wrong_in(const BenchReport& report);

}  // namespace

std::string detail_text(const BenchOptions& options) {
  if (options.collective->reduces) return paceline::to_string(options.reduce);
  return options.collective->rooted ? fmt::format("root {}", options.root) : "-";
}

std::string table_head(const BenchOptions& options, const BenchFacts& facts) {
  const CollectiveTraits& traits = *options.collective;
  std::string text =
      fmt::format("# {}: {} {} on {} usable {} of {}, transport {} (engine {}), kernels {}\n", traits.name, facts.ranks,
                  facts.ranks == 1 ? "rank" : "ranks", facts.cores, facts.cores == 1 ? "core" : "cores", facts.host,
                  facts.transport, facts.engine, facts.kernel);
  if (facts.ranks > facts.cores) {
    text += "# Ranks outnumber cores: they take turns, and so does the roofline.\n";
  }
  if (traits.reduces && traits.rooted) text += fmt::format("# root {}\n", options.root);
  text += fmt::format("# {}, {} buffers, results {}{}\n", sampling_text(options), to_string(options.buffers),
                      options.check ? "checked" : "not checked",
                      options.dirty ? ", dirty: inputs are rewritten before each call" : "");
  text += fmt::format(kLine, "bytes", "count", "type", "op", "place", "p50 us", "p99 us", "algbw", "busbw", "#wrong",
                      "algorithm", "roof", "skew us", "csw/op");
  text += fmt::format(kLine, "", "", "", "", "", "(slowest", "rank)", "GB/s", "GB/s", "", "", "line %", "", "");
  return text;
}

std::string table_row(const BenchOptions& options, const BenchResult& result) {
  const std::string detail = options.collective->rooted && !options.collective->reduces
                                 ? fmt::format("root{}", options.root)
                                 : detail_text(options);
  return fmt::format(kLine, result.row.bytes, result.row.count, paceline::to_string(options.dtype), detail,
                     to_string(result.row.place), fmt::format("{:.2f}", result.p50_us),
                     fmt::format("{:.2f}", result.p99_us), fmt::format("{:.3f}", result.algbw_gbps),
                     fmt::format("{:.3f}", result.busbw_gbps), result.wrong ? fmt::format("{}", *result.wrong) : "-",
                     result.algorithm,
                     result.roofline_fraction ? fmt::format("{:.1f}", 100 * *result.roofline_fraction) : "-",
                     fmt::format("{:.2f}", result.skew_us), fmt::format("{:.2f}", result.context_switches));
}

std::string table_foot(const BenchReport& report) {
  double sum = 0;
  for (const BenchResult& result : report.results) sum += result.busbw_gbps;
  std::string text = fmt::format("# Average bus bandwidth {:.3f} GB/s over {} rows", sum / report.results.size(),
                                 report.results.size());
  return text + (report.options.check ? fmt::format(", {} wrong elements\n", wrong_in(report)) : ", not checked\n");
}

namespace {

std::string sampling_text(const BenchOptions& options) {
  if (options.iterations) return fmt::format("{} samples a row after {} calls", *options.iterations, options.warmup);
  return fmt::format("samples for {} s a row after {} calls", options.seconds, options.warmup);
}

std::uint64_t wrong_in(const BenchReport& report) {
  std::uint64_t wrong = 0;
  for (const BenchResult& result : report.results) wrong += result.wrong.value_or(0);
  return wrong;
}

}  // namespace
}  // namespace paceline::tools
