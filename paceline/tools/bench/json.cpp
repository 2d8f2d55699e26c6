#include <nlohmann/json.hpp>

#include "paceline/tools/bench/names.h"
#include "paceline/tools/bench/report.h"

namespace paceline::tools {
namespace {

using nlohmann::json;

template <class T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

json to_json(const BenchOptions& options, const BenchResult& result) {
  return {{"bytes", result.row.bytes},
          {"count", result.row.count},
          {"type", paceline::to_string(options.dtype)},
          {"algorithm", result.algorithm},
          {"in_place", result.row.place == Place::InPlace},
          {"p50_us", result.p50_us},
          {"p99_us", result.p99_us},
          {"algbw_GBps", result.algbw_gbps},
          {"busbw_GBps", result.busbw_gbps},
          {"wrong", or_null(result.wrong)},
          {"roofline_us", or_null(result.roofline_us)},
          {"roofline_fraction", or_null(result.roofline_fraction)},
          {"skew_us", result.skew_us},
          {"context_switches", result.context_switches},
          {"samples", result.samples},
          {"batch", result.batch}};
}

}  // namespace

std::string bench_json(const BenchReport& report) {
  const BenchOptions& options = report.options;
  const CollectiveTraits& traits = *options.collective;
  json results = json::array();
  for (const BenchResult& result : report.results) results.push_back(to_json(options, result));
  const json document = {{"schema", "paceline.bench/1"},
                         {"op", traits.name},
                         {"reduce", traits.reduces ? json(paceline::to_string(options.reduce)) : json(nullptr)},
                         {"root", traits.rooted ? json(options.root) : json(nullptr)},
                         {"ranks", report.facts.ranks},
                         {"transport", report.facts.transport},
                         {"engine", report.facts.engine},
                         {"cores", report.facts.cores},
                         {"host", report.facts.host},
                         {"kernel", report.facts.kernel},
                         {"started", report.facts.started},
                         {"buffers", to_string(options.buffers)},
                         {"dirty", options.dirty},
                         {"warmup", options.warmup},
                         {"results", results}};
  return document.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace paceline::tools
