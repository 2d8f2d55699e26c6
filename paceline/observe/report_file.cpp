#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "paceline/base/durable_file.h"
#include "paceline/base/error.h"
#include "paceline/base/read_file.h"
#include "paceline/observe/json_field.h"
#include "paceline/observe/report.h"

namespace paceline {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kSchema = "paceline.report/1";
constexpr const char* kFileName = "report.json";
constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;

void make_directory(const fs::path& dir);

json to_json(const Report& report);
json to_json(const RankSummary& rank);
Report report_from_json(const JsonField& field);
RankSummary rank_from_json(const JsonField& field);

}  // namespace

void require_writable(const fs::path& dir) {
  make_directory(dir);
  // Asking for permission is not enough: root may write to a read-only file system, if one asks.
  const DurableFile probe(unpredictable_path(dir));  // goes with this object
}

fs::path write_report(const Report& report, const fs::path& dir) {
  make_directory(dir);
  fs::path path = dir / kFileName;
  replace_file(path, dump_json(to_json(report), 2) + "\n", 0666);
  return path;
}

Report read_report(const fs::path& path) {
  std::error_code not_there;
  const fs::path file = fs::is_directory(path, not_there) ? path / kFileName : path;
  const auto bytes = read_whole_file(file, kMostBytes);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const json document = parse_json(text, file.string());
  return report_from_json(JsonField(document, file.string()));
}

namespace {

void make_directory(const fs::path& dir) {
  if (dir.empty()) throw Error(ErrorCode::InvalidArgument, "the report needs a directory, but its path is empty");
  std::error_code error;
  if (fs::exists(dir, error) && !fs::is_directory(dir, error)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the report needs a directory, but {} is a file; name another path", dir.string()));
  }
  fs::create_directories(dir, error);
  if (error)
    throw system_error(fmt::format("cannot create the directory {} for the report", dir.string()), error.value());
}

json to_json(const Report& report) {
  json peaks = json::array();
  json ranks = json::array();
  for (const RankSummary& rank : report.ranks) {
    peaks.push_back(json_or_null(rank.peak_bytes));
    ranks.push_back(to_json(rank));
  }
  const RunInfo& run = report.run;
  const ConfigInfo& config = report.config;
  return {{"schema", kSchema},
          {"run",
           {{"id", run.id},
            {"world", run.world},
            {"hosts", run.hosts},
            {"started", json_or_null(run.started)},
            {"steps", run.steps},
            {"warmup_steps", run.warmup_steps}}},
          {"config",
           {{"model", json_or_null(config.model)},
            {"parameters", json_or_null(config.parameters)},
            {"batch_per_rank", json_or_null(config.batch_per_rank)},
            {"optimizer", json_or_null(config.optimizer)},
            {"mode", json_or_null(config.mode)},
            {"codec", json_or_null(config.codec)},
            {"bucket_bytes", json_or_null(config.bucket_bytes)}}},
          {"throughput",
           {{"samples_per_s", report.samples_per_s}, {"speedup_vs_one", json_or_null(report.speedup_vs_one)}}},
          {"step_s", paceline::to_json(report.step)},
          {"breakdown_s", parts_to_json(report.breakdown)},
          {"hidden_comm_s", report.breakdown.hidden_comm_s},
          {"accuracy", {{"test", json_or_null(report.test_accuracy)}}},
          {"memory", {{"peak_bytes_per_rank", peaks}}},
          {"ranks", ranks},
          {"findings", paceline::to_json(report.findings)}};
}

json to_json(const RankSummary& rank) {
  return {{"rank", rank.rank},
          {"host", rank.host},
          {"pid", rank.pid},
          {"breakdown_s", parts_to_json(rank.breakdown)},
          {"hidden_comm_s", rank.breakdown.hidden_comm_s},
          {"wait_for_peers_s", rank.breakdown.wait_for_peers_s},
          {"transfer_s", rank.breakdown.transfer_s},
          {"reducing_s", rank.breakdown.reducing_s},
          {"comm_bytes", rank.breakdown.comm_bytes},
          {"operations", rank.breakdown.operations},
          {"step_s", paceline::to_json(rank.step)},
          {"peak_bytes", json_or_null(rank.peak_bytes)},
          {"network", paceline::to_json(rank.network)}};
}

Report report_from_json(const JsonField& field) {
  if (const JsonField schema = field["schema"]; schema.text() != kSchema) {
    schema.fail(fmt::format("is '{}'; this version reads '{}'", schema.text(), kSchema));
  }
  Report report;
  const JsonField run = field["run"];
  report.run.id = run["id"].text();
  report.run.world = run["world"].small_count();
  for (const JsonField& host : run["hosts"].items()) report.run.hosts.push_back(host.text());
  report.run.started = run["started"].text_or_null();
  report.run.steps = run["steps"].count();
  report.run.warmup_steps = run["warmup_steps"].count();

  const JsonField config = field["config"];
  report.config.model = config["model"].text_or_null();
  report.config.parameters = config["parameters"].count_or_null();
  report.config.batch_per_rank = config["batch_per_rank"].count_or_null();
  report.config.optimizer = config["optimizer"].text_or_null();
  report.config.mode = config["mode"].text_or_null();
  report.config.codec = config["codec"].text_or_null();
  report.config.bucket_bytes = config["bucket_bytes"].count_or_null();

  for (const JsonField& rank : field["ranks"].items()) {
    report.ranks.push_back(rank_from_json(rank));
    report.ranks.back().steps = report.run.steps;
    report.ranks.back().warmup_steps = report.run.warmup_steps;
  }
  if (report.ranks.empty() || report.ranks.size() != static_cast<std::size_t>(report.run.world)) {
    field["ranks"].fail(fmt::format("has {} entries, but run.world is {}", report.ranks.size(), report.run.world));
  }
  // The file has the parts of the mean; how waiting and transfer share the exposed time follows from the ranks.
  report.breakdown = mean_breakdown(report.ranks);
  parts_from_json(field["breakdown_s"], report.breakdown);
  report.breakdown.hidden_comm_s = field["hidden_comm_s"].number();

  report.samples_per_s = field["throughput"]["samples_per_s"].number();
  report.speedup_vs_one = field["throughput"]["speedup_vs_one"].number_or_null();
  report.step = step_times_from_json(field["step_s"]);
  report.test_accuracy = field["accuracy"]["test"].number_or_null();
  const auto peaks = field["memory"]["peak_bytes_per_rank"].items();
  if (peaks.size() != report.ranks.size()) field["memory"]["peak_bytes_per_rank"].fail("has not one entry a rank");
  report.findings = findings_from_json(field["findings"]);
  return report;
}

RankSummary rank_from_json(const JsonField& field) {
  RankSummary rank;
  rank.rank = field["rank"].small_count();
  rank.host = field["host"].text();
  rank.pid = field["pid"].integer();
  parts_from_json(field["breakdown_s"], rank.breakdown);
  rank.breakdown.hidden_comm_s = field["hidden_comm_s"].number();
  rank.breakdown.wait_for_peers_s = field["wait_for_peers_s"].number();
  rank.breakdown.transfer_s = field["transfer_s"].number();
  rank.breakdown.reducing_s = field["reducing_s"].number();
  rank.breakdown.comm_bytes = field["comm_bytes"].number();
  rank.breakdown.operations = field["operations"].number();
  rank.step = step_times_from_json(field["step_s"]);
  rank.peak_bytes = field["peak_bytes"].count_or_null();
  rank.network = network_from_json(field["network"]);
  return rank;
}

}  // namespace

}  // namespace paceline
