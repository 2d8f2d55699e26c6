#include "paceline/observe/report.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "paceline/base/error.h"
#include "paceline/observe/summary.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class ReportTest : public testing::Test {
 public:
  ReportTest() {
    std::string name = (fs::temp_directory_path() / "paceline_report_XXXXXX").string();
    dir = ::mkdtemp(name.data());
  }
  ~ReportTest() override { fs::remove_all(dir); }

 protected:
  static std::string read(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

  fs::path dir;
};

RankSummary rank_summary(int rank, const std::string& host) {
  RankSummary s;
  s.rank = rank;
  s.host = host;
  s.pid = 100 + rank;
  s.threads = 1;
  s.cores = {0, 1};
  s.steps = 1000;
  s.warmup_steps = 5;
  s.samples_per_s = 1000;
  s.breakdown = {0.001, 0.010, 0.020, 0.005 + rank * 0.001, 0.003, 0.0001, 0.012, 0.002, 0.003 + rank * 0.001, 1e6, 4};
  s.step = {s.breakdown.step_s(), 0.040, 0.045, 0.060};
  s.peak_bytes = 100'000'000 + static_cast<std::uint64_t>(rank);
  return s;
}

Report sample_report() {
  RunInfo run;
  run.id = "run-7";
  run.started = utc_text(std::chrono::system_clock::time_point(std::chrono::seconds(1'700'000'000)));
  ConfigInfo config;
  config.model = "mlp";
  config.parameters = 12345;
  config.batch_per_rank = 64;
  config.mode = "synchronous";
  config.codec = "none";
  config.bucket_bytes = 1 << 20;
  std::vector<RankSummary> ranks = {rank_summary(2, "b"), rank_summary(0, "a"), rank_summary(1, "a")};
  ranks[2].peak_bytes.reset();
  ranks[1].network = NetworkFacts{.worst_round_trip_s = 0.002, .retransmits = 3, .bytes_sent = 1 << 20};
  ranks[0].findings = ranks[1].findings = {{"same_batch", Severity::Error, "ranks 0 and 2", 0, "Shuffle.", 1}};
  return make_report(run, config, ranks, {.one_worker_samples_per_s = 1250});
}

std::set<std::string> keys(const json& object) {
  std::set<std::string> names;
  for (const auto& item : object.items()) names.insert(item.key());
  return names;
}

TEST(MakeReport, SumsAndMeansOverRanks) {
  const Report report = sample_report();
  EXPECT_EQ(report.run.world, 3);
  EXPECT_EQ(report.run.hosts, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(report.run.steps, 1000u);
  EXPECT_EQ(report.run.warmup_steps, 5u);
  EXPECT_EQ(report.run.started, "2023-11-14T22:13:20Z");
  EXPECT_DOUBLE_EQ(report.samples_per_s, 3000);
  EXPECT_DOUBLE_EQ(report.speedup_vs_one.value(), 2.4);
  EXPECT_FALSE(report.test_accuracy);
  EXPECT_DOUBLE_EQ(report.breakdown.exposed_comm_s, 0.006);
  EXPECT_NEAR(report.breakdown.step_s(), report.step.mean_s, 1e-15);
  EXPECT_EQ(report.ranks[0].rank, 0);
  EXPECT_EQ(report.ranks[2].rank, 2);
}

TEST(MakeReport, TellsWhatSeveralRanksFoundOnceAndErrorsFirst) {
  const Report report = sample_report();
  ASSERT_FALSE(report.findings.empty());
  EXPECT_EQ(report.findings[0].id, "same_batch");
  int same = 0;
  for (const Finding& finding : report.findings) same += finding.id == "same_batch";
  EXPECT_EQ(same, 1);
}

TEST(MakeReport, NeedsEachRankOnce) {
  for (const auto& ranks : {std::vector<RankSummary>{},
                            {rank_summary(0, "a"), rank_summary(0, "a")},
                            {rank_summary(0, "a"), rank_summary(2, "a")}}) {
    try {
      make_report({}, {}, ranks);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::InvalidArgument);
    }
  }
}

TEST_F(ReportTest, HasExactlyTheKeysOfItsSchema) {
  const json j = json::parse(read(write_report(sample_report(), dir)));
  using Keys = std::set<std::string>;
  EXPECT_EQ(keys(j), (Keys{"schema", "run", "config", "throughput", "step_s", "breakdown_s", "hidden_comm_s",
                           "accuracy", "memory", "ranks", "findings"}));
  EXPECT_EQ(j["schema"], "paceline.report/1");
  EXPECT_EQ(keys(j["run"]), (Keys{"id", "world", "hosts", "started", "steps", "warmup_steps"}));
  EXPECT_EQ(keys(j["config"]),
            (Keys{"model", "parameters", "batch_per_rank", "optimizer", "mode", "codec", "bucket_bytes"}));
  EXPECT_EQ(keys(j["throughput"]), (Keys{"samples_per_s", "speedup_vs_one"}));
  EXPECT_EQ(keys(j["step_s"]), (Keys{"mean", "p50", "p90", "p99"}));
  const Keys parts = {"data_wait", "forward", "backward", "exposed_comm", "optimizer", "other"};
  EXPECT_EQ(keys(j["breakdown_s"]), parts);
  EXPECT_EQ(keys(j["accuracy"]), Keys{"test"});
  EXPECT_EQ(keys(j["memory"]), Keys{"peak_bytes_per_rank"});
  ASSERT_EQ(j["ranks"].size(), 3u);
  for (const json& rank : j["ranks"]) {
    EXPECT_EQ(keys(rank), (Keys{"rank", "host", "pid", "breakdown_s", "hidden_comm_s", "wait_for_peers_s", "transfer_s",
                                "reducing_s", "comm_bytes", "operations", "step_s", "peak_bytes", "network"}));
    EXPECT_EQ(keys(rank["breakdown_s"]), parts);
  }
  EXPECT_EQ(keys(j["findings"][0]), (Keys{"id", "severity", "evidence", "cost_s", "fix", "max_gain"}));

  double sum = 0;
  for (const auto& part : j["breakdown_s"].items()) sum += part.value().get<double>();
  EXPECT_NEAR(sum, j["step_s"]["mean"].get<double>(), 1e-12);
}

TEST_F(ReportTest, WhatIsNotKnownIsNull) {
  const json j = json::parse(read(write_report(sample_report(), dir)));
  EXPECT_TRUE(j["accuracy"]["test"].is_null());
  EXPECT_TRUE(j["config"]["optimizer"].is_null());
  EXPECT_TRUE(j["memory"]["peak_bytes_per_rank"][1].is_null());
  EXPECT_EQ(j["memory"]["peak_bytes_per_rank"][2], 100'000'002);
  const Report bare = make_report({}, {}, {rank_summary(0, "a")});
  const json none = json::parse(read(write_report(bare, dir)));
  EXPECT_TRUE(none["throughput"]["speedup_vs_one"].is_null());
  EXPECT_TRUE(none["config"]["parameters"].is_null());
}

TEST_F(ReportTest, ReadingAndWritingAgainChangesNothing) {
  const fs::path path = write_report(sample_report(), dir / "deep" / "er");
  const Report back = read_report(path);
  EXPECT_EQ(read(write_report(back, dir)), read(path));
  EXPECT_EQ(read(write_report(read_report(path.parent_path()), dir)), read(path));
  EXPECT_EQ(back.findings, sample_report().findings);
  EXPECT_DOUBLE_EQ(back.breakdown.wait_for_peers_s, sample_report().breakdown.wait_for_peers_s);
}

TEST_F(ReportTest, LeavesNothingButTheReport) {
  require_writable(dir);
  write_report(sample_report(), dir);
  write_report(sample_report(), dir);
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir)) ++files;
  EXPECT_EQ(files, 1u);
}

template <class Call>
void expect_error(ErrorCode code, const std::string& said, const Call& call) {
  try {
    call();
    FAIL() << "no error; expected " << said;
  } catch (const Error& e) {
    EXPECT_EQ(to_string(e.code()), std::string(to_string(code)));
    EXPECT_NE(e.message().find(said), std::string::npos) << e.message();
  }
}

TEST_F(ReportTest, SaysWhereItCannotWrite) {
  write(dir / "file", "");
  expect_error(ErrorCode::InvalidArgument, (dir / "file").string(), [&] { require_writable(dir / "file"); });
  expect_error(ErrorCode::InvalidArgument, (dir / "file").string(),
               [&] { write_report(sample_report(), dir / "file"); });
  expect_error(ErrorCode::System, "/file/below", [&] { require_writable(dir / "file" / "below"); });
  expect_error(ErrorCode::InvalidArgument, "empty", [&] { require_writable(""); });
  expect_error(ErrorCode::System, "/proc/no", [&] { require_writable("/proc/no"); });
  expect_error(ErrorCode::System, "/proc/self", [&] { write_report(sample_report(), "/proc/self"); });
}

TEST_F(ReportTest, AFailedReplacementLeavesNoHalves) {
  fs::create_directories(dir / "report.json" / "occupied");  // A directory that rename() cannot replace.
  expect_error(ErrorCode::System, "report.json", [&] { write_report(sample_report(), dir); });
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir)) ++files;
  EXPECT_EQ(files, 1u);
}

// Names that somebody else who may write to the folder could have put there before.
TEST_F(ReportTest, NoNameOfATemporaryFileCanBeGuessed) {
  const fs::path victim = dir / "victim";
  write(victim, "precious");
  for (const char* name : {"report.json.tmp.", ".paceline-probe."}) {
    fs::create_symlink(victim, dir / (name + std::to_string(::getpid())));
  }
  fs::create_symlink(victim, dir / "report.json");
  require_writable(dir);
  const fs::path path = write_report(sample_report(), dir);
  EXPECT_EQ(read(victim), "precious");
  EXPECT_FALSE(fs::is_symlink(path));
  EXPECT_EQ(read_report(path).findings, sample_report().findings);
}

TEST_F(ReportTest, OthersMayReadItAsFarAsTheUmaskLetsThem) {
  const mode_t before = ::umask(027);
  const fs::path path = write_report(sample_report(), dir);
  ::umask(before);
  EXPECT_EQ(fs::status(path).permissions(), fs::perms{0640});
}

TEST_F(ReportTest, WhatIsNestedDeeplyOrNoRegularFileIsRefused) {
  write(dir / "deep.json", std::string(100'000, '[') + std::string(100'000, ']'));
  expect_error(ErrorCode::Corrupt, "nested too deeply", [&] { read_report(dir / "deep.json"); });
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  expect_error(ErrorCode::Corrupt, "no regular file", [&] { read_report(dir / "fifo"); });
  expect_error(ErrorCode::Corrupt, "no regular file", [&] { read_report("/dev/zero"); });
}

TEST_F(ReportTest, DamagedFilesAreCorruptAndTheFieldIsNamed) {
  const std::string text = read(write_report(sample_report(), dir));
  const fs::path path = dir / "damaged.json";
  const auto read_with = [&](const std::function<void(json&)>& damage) {
    return [&, damage] {
      json j = json::parse(text);
      damage(j);
      write(path, j.dump());
      read_report(path);
    };
  };
  expect_error(ErrorCode::System, "absent.json", [&] { read_report(dir / "absent.json"); });
  expect_error(ErrorCode::Corrupt, "'schema'", read_with([](json& j) { j["schema"] = "paceline.report/9"; }));
  expect_error(ErrorCode::Corrupt, "'run.world'", read_with([](json& j) { j["run"]["world"] = -3; }));
  expect_error(ErrorCode::Corrupt, "'ranks'", read_with([](json& j) { j["ranks"].erase(0); }));
  expect_error(ErrorCode::Corrupt, "'ranks[2].step_s.p90'",
               read_with([](json& j) { j["ranks"][2]["step_s"].erase("p90"); }));
  expect_error(ErrorCode::Corrupt, "'breakdown_s.forward'",
               read_with([](json& j) { j["breakdown_s"]["forward"] = "slow"; }));
  expect_error(ErrorCode::Corrupt, "'findings[0].severity'",
               read_with([](json& j) { j["findings"][0]["severity"] = "dire"; }));

  // No field may be missing, whichever it is.
  const json whole = json::parse(text);
  for (const auto& group : whole.items()) {
    expect_error(ErrorCode::Corrupt, "'" + group.key() + "'", read_with([&](json& j) { j.erase(group.key()); }));
    if (!group.value().is_object()) continue;
    for (const auto& item : group.value().items()) {
      expect_error(ErrorCode::Corrupt, "'" + group.key() + "." + item.key() + "'",
                   read_with([&](json& j) { j[group.key()].erase(item.key()); }));
    }
  }
  for (std::size_t cut = 0; cut + 1 < text.size(); cut += 7) {
    write(path, text.substr(0, cut));
    expect_error(ErrorCode::Corrupt, "damaged.json", [&] { read_report(path); });
  }
}

/// Columns, as each character of the summaries takes one.
std::size_t columns(const std::string& line) {
  std::size_t count = 0;
  for (char c : line) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

TEST_F(ReportTest, TheSummaryIsTheSameForAReportReadBack) {
  const Report report = sample_report();
  const Report back = read_report(write_report(report, dir));
  EXPECT_EQ(terminal_summary(back), terminal_summary(report));
}

TEST(Summary, FitsItsWidth) {
  for (int width : {60, 80, 120}) {
    for (Charset charset : {Charset::Ascii, Charset::Utf8}) {
      std::istringstream lines(terminal_summary(sample_report(), {.width = width, .charset = charset}));
      for (std::string line; std::getline(lines, line);)
        EXPECT_LE(columns(line), static_cast<std::size_t>(width)) << line;
    }
  }
}

TEST(Summary, SaysWhatMattersAndOnlyWhatIsKnown) {
  Report report = sample_report();
  report.findings.erase(report.findings.begin());
  std::string text = terminal_summary(report, {.report_path = "runs/latest/report.json"});
  for (const char* part : {"3,000 samples/s", "2.40x one worker", "80 %", "exposed communication", "p99 60.0 ms",
                           "runs/latest/report.json", "(5 of warm-up left out)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find("accuracy"), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  report.test_accuracy = 0.9012;
  text = terminal_summary(report, {.colour = Colour::Ansi});
  EXPECT_NE(text.find("90.12 % test accuracy"), std::string::npos) << text;
  EXPECT_NE(text.find('\x1b'), std::string::npos);
}

TEST(Summary, AsciiIsAscii) {
  for (char c : terminal_summary(sample_report(), {.charset = Charset::Ascii})) {
    EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
  }
}

TEST(Summary, WithoutStepsSaysSo) {
  const std::string text = terminal_summary(make_report({}, {}, {RankSummary{}}));
  EXPECT_NE(text.find("No training step"), std::string::npos) << text;
}

}  // namespace
}  // namespace paceline
