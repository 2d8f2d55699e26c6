// `paceline bench` as its users see it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/build_paths.h"
#include "tests/support/launched_job.h"

namespace paceline {
namespace {

using nlohmann::json;

const std::vector<std::string> kQuick{"--iters", "5", "--warmup", "1"};

std::vector<std::string> bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "bench");
  arguments.insert(arguments.end(), kQuick.begin(), kQuick.end());
  return arguments;
}

/// The rows of a table, and nothing else that it prints.
std::vector<std::string> rows_of(const std::string& table) {
  std::vector<std::string> rows;
  for (const std::string& line : lines_of(table)) {
    const std::size_t begin = line.find_first_not_of(' ');
    if (begin != std::string::npos && std::isdigit(static_cast<unsigned char>(line[begin]))) rows.push_back(line);
  }
  return rows;
}

void check_result(const json& result) {
  const std::set<std::string> numbers{"bytes",      "p50_us",           "p99_us",
                                      "algbw_GBps", "busbw_GBps",       "wrong",
                                      "count",      "roofline_us",      "roofline_fraction",
                                      "skew_us",    "context_switches", "samples",
                                      "batch"};
  for (const std::string& name : numbers) EXPECT_TRUE(result.at(name).is_number()) << name << " in " << result;
  EXPECT_EQ(result.at("type"), "float32");
  EXPECT_TRUE(result.at("in_place").is_boolean());
  EXPECT_TRUE(result.at("algorithm").is_string());
  EXPECT_EQ(result.at("wrong"), 0);
  EXPECT_GT(result.at("p50_us"), 0.0);
  EXPECT_GE(result.at("p99_us"), result.at("p50_us"));
  EXPECT_GT(result.at("roofline_fraction"), 0.0);
  EXPECT_GE(result.at("skew_us"), 0.0);
  const double bytes = result.at("bytes"), p50_us = result.at("p50_us");
  EXPECT_NEAR(result.at("algbw_GBps").get<double>(), bytes / p50_us / 1e3, 1e-6 * bytes / p50_us);
}

TEST(BenchJob, WritesTheTableTheFiguresAndThePlot) {
  const TemporaryFolder folder;
  const std::string json_path = folder.path / "figures.json", plot_path = folder.path / "plot.svg";
  Job job(bench(
      {"reduce_scatter", "-n", "2", "-b", "8", "-e", "64K", "-f", "16", "--json", json_path, "--plot", plot_path}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.err(), "");
  EXPECT_EQ(rows_of(job.out()).size(), 8u) << job.out();
  EXPECT_NE(job.out().find("0 wrong elements"), std::string::npos) << job.out();
  EXPECT_EQ(job.out().find("[rank"), std::string::npos) << "lines of the one that prints bear no tag";

  const json report = json::parse(read_file(json_path));
  EXPECT_EQ(report.at("schema"), "paceline.bench/1");
  EXPECT_EQ(report.at("op"), "reduce_scatter");
  EXPECT_EQ(report.at("reduce"), "sum");
  EXPECT_EQ(report.at("ranks"), 2);
  EXPECT_EQ(report.at("transport"), "shm");
  EXPECT_GE(report.at("cores"), 1);
  ASSERT_EQ(report.at("results").size(), 8u);
  for (const json& result : report.at("results")) check_result(result);
  EXPECT_EQ(report.at("results")[0].at("bytes"), 8);
  EXPECT_EQ(report.at("results")[0].at("in_place"), false);
  EXPECT_EQ(report.at("results")[1].at("in_place"), true);

  const std::string svg = read_file(plot_path);
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n")) << svg;
  EXPECT_EQ(count(svg, "<polyline"), 8u) << "two places, time and bandwidth, each with its limit";
  EXPECT_EQ(count(svg, "stroke-dasharray"), 4u + 2u) << "limits, and in the legend";
  EXPECT_TRUE(job.leaves_nothing());
}

TEST(BenchJob, FiguresCanTakeTheTablesPlace) {
  Job job(bench({"all_reduce", "-n", "2", "-b", "4K", "-e", "4K", "--json", "-"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(json::parse(job.out()).at("results").size(), 2u);
}

TEST(BenchJob, EveryCollectiveRunsInEveryWay) {
  const std::vector<std::vector<std::string>> cases = {
      {"all_reduce", "-n", "3", "--type", "half", "--op", "mean"},
      {"all_reduce", "-n", "2", "--dirty"},
      {"all_reduce", "-n", "2", "--buffers", "private", "--op", "max"},
      {"reduce_scatter", "-n", "3", "--type", "int64", "--in-place"},
      {"all_gather", "-n", "3", "--type", "uint8", "--out-of-place"},
      {"broadcast", "-n", "2", "--root", "1", "--type", "bfloat16"},
      {"reduce", "-n", "3", "--root", "2", "--op", "min"},
      {"gather", "-n", "2", "--root", "1"},
      {"scatter", "-n", "3", "--type", "double"},
      {"all_to_all", "-n", "3", "--type", "int32"},
      {"all_reduce", "-n", "2", "--algorithm", "chunk_queue"},
      {"barrier", "-n", "2"},
      {"all_gather", "-n", "1"},
  };
  for (std::vector<std::string> arguments : cases) {
    if (arguments[0] != "barrier") arguments.insert(arguments.end(), {"-e", "64K", "-f", "32"});
    Job job(bench(arguments));
    EXPECT_EQ(job.wait(), 0) << arguments[0] << ": " << job.err();
    EXPECT_FALSE(rows_of(job.out()).empty()) << job.out();
    EXPECT_NE(job.out().find(" 0 wrong elements"), std::string::npos) << job.out();
  }
}

TEST(BenchJob, AnAlgorithmThatCannotIsRefusedBeforeAnythingIsMeasured) {
  Job job(bench({"all_reduce", "-n", "2", "-b", "4K", "-e", "1M", "--algorithm", "one_shot"}));
  EXPECT_EQ(job.wait(), 64) << job.err();
  EXPECT_NE(job.err().find("paceline bench: algorithm one_shot takes up to "), std::string::npos) << job.err();
  EXPECT_EQ(job.err().find("ABORTED"), std::string::npos) << job.err();
  EXPECT_EQ(job.out(), "");
  Job named(bench({"all_reduce", "-n", "2", "-b", "4K", "-e", "4K", "--algorithm", "slices", "--json", "-"}));
  EXPECT_EQ(named.wait(), 0) << named.err();
  EXPECT_EQ(json::parse(named.out()).at("results")[0].at("algorithm"), "slices");
}

TEST(BenchJob, UncheckedResultsAreNotCalledRight) {
  Job job(bench({"all_reduce", "-n", "2", "-b", "4K", "-e", "4K", "--no-check"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_NE(job.out().find("not checked"), std::string::npos) << job.out();
  EXPECT_EQ(job.out().find("wrong elements"), std::string::npos) << job.out();
}

TEST(BenchJob, MeasuresTcpWithoutARoofline) {
  Job job(bench({"all_reduce", "-n", "2", "-b", "1M", "-e", "1M", "--transport", "tcp", "--json", "-"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  const json report = json::parse(job.out());
  EXPECT_EQ(report.at("transport"), "tcp");
  for (const json& result : report.at("results")) {
    EXPECT_EQ(result.at("wrong"), 0);
    EXPECT_EQ(result.at("algorithm"), "direct");
    EXPECT_TRUE(result.at("roofline_fraction").is_null());
  }
}

TEST(BenchJob, IsAWorkerInsideOfAJob) {
  std::vector<std::string> arguments{"run", "-n", "3", "--no-tag", "--", test::kPacelineBinary};
  const auto inner = bench({"all_gather", "-b", "12", "-e", "12K", "-f", "32"});
  arguments.insert(arguments.end(), inner.begin(), inner.end());
  Job job(arguments);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_NE(job.out().find("# all_gather: 3 ranks"), std::string::npos) << job.out();
  EXPECT_EQ(rows_of(job.out()).size(), 6u) << job.out();

  arguments.insert(arguments.end(), {"-n", "2"});
  Job contrary(arguments);
  EXPECT_EQ(contrary.wait(), 64);
  EXPECT_NE(contrary.err().find("-n 2, but the job has 3 workers"), std::string::npos) << contrary.err();
}

TEST(BenchJob, BadUseIsOneLineAndExitCode64) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "COLLECTIVE is required"},
      {{"allreduce"}, "there is no collective \"allreduce\"; take one of all_reduce, reduce_scatter"},
      {{"all_reduce", "-n", "0"}, "-n: takes a whole number from 1 to 1024, not \"0\""},
      {{"all_reduce", "-b", "10"}, "-b 10 is no multiple of 4 bytes (float32); take 8 or 12"},
      {{"all_gather", "-n", "3", "-b", "8"}, "one float32 for each of 3 ranks"},
      {{"all_reduce", "-b", "8Q"}, "-b takes a size such as 8, 4K, 128M or 1G"},
      {{"all_reduce", "-b", "1M", "-e", "1K"}, "-b 1M is more than -e 1K"},
      {{"all_reduce", "-f", "1"}, "-f takes a factor of at least 1.001, not 1"},
      {{"all_reduce", "-f", "x"}, "-f: takes a number greater than 0, not \"x\""},
      {{"all_reduce", "-f", "2", "-i", "8"}, "-f and -i exclude each other"},
      {{"all_reduce", "-i", "0"}, "-i takes a step of at least 1 byte"},
      {{"all_reduce", "--type", "quad"}, "--type takes one of float"},
      {{"all_reduce", "--op", "prod"}, "--op takes one of sum, mean, min, max, not \"prod\""},
      {{"all_reduce", "--transport", "ib"}, "--transport takes one of auto, shm, tcp"},
      {{"all_reduce", "--algorithm", "tree"}, "--algorithm takes one of auto, one_shot, slices, chunk_queue"},
      {{"all_reduce", "--buffers", "gpu"}, "--buffers takes one of registered, private"},
      {{"broadcast", "-n", "2", "--root", "2"}, "--root 2 is no rank of 2"},
      {{"broadcast", "--out-of-place"}, "in place only"},
      {{"all_reduce", "--root", "1"}, "has no root"},
      {{"all_gather", "--op", "max"}, "does not reduce"},
      {{"all_reduce", "--check", "--no-check"}, "exclude each other"},
      {{"all_reduce", "--iters", "0"}, "--iters: takes a whole number from 1"},
      {{"all_reduce", "--seconds", "-1"}, "--seconds: takes a number greater than 0"},
      {{"all_reduce", "--json", "/no/such/folder/x.json"}, "there is no directory /no/such/folder"},
      {{"all_reduce", "--plot", "/"}, "is a directory"},
      {{"all_reduce", "--", "program"}, "takes no program after --"},
      {{"all_reduce", "extra"}, "extra"},
  };
  for (const auto& [arguments, expected] : cases) {
    std::vector<std::string> words{"bench"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    Job job(words);
    EXPECT_EQ(job.wait(), 64) << job.out() << job.err();
    EXPECT_EQ(lines_of(job.err()).size(), 1u) << job.err();
    EXPECT_NE(job.err().find(expected), std::string::npos) << job.err();
    EXPECT_EQ(job.out(), "");
  }
}

TEST(BenchJob, CtrlCEndsAllOfIt) {
  Job job({"bench", "all_reduce", "-n", "2", "-b", "4K", "-e", "4K", "-f", "2", "--iters", "10000000"});
  ASSERT_TRUE(job.says("algorithm"));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_TRUE(job.leaves_nothing());
}

TEST(BenchJob, ARankThatDiesIsNamed) {
  Job job({"bench", "all_reduce", "-n", "2", "-b", "4K", "-e", "4K", "-f", "2", "--iters", "10000000"});
  ASSERT_TRUE(job.says("algorithm"));
  pid_t worker = 0;
  ASSERT_TRUE(eventually([&] {
    for (const pid_t pid : marked_processes(std::string("RANK=1"))) {
      if (parent_of(pid) == job.supervisor()) worker = pid;
    }
    return worker != 0;
  }));
  ::kill(worker, SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL) << job.err();
  EXPECT_NE(job.err().find("rank 1 failed first"), std::string::npos) << job.err();
  EXPECT_TRUE(job.leaves_nothing());
}

}  // namespace
}  // namespace paceline
