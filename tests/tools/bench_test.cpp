// The parts of `paceline bench` on known numbers, and its check over real collectives.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "paceline/base/error.h"
#include "paceline/tools/bench/check.h"
#include "paceline/tools/bench/names.h"
#include "paceline/tools/bench/operands.h"
#include "paceline/tools/bench/plan.h"
#include "paceline/tools/bench/report.h"
#include "paceline/tools/bench/roofline.h"
#include "paceline/tools/bench/sizes.h"
#include "paceline/tools/bench/statistics.h"
#include "tests/support/world.h"

namespace paceline::tools {
namespace {

/// The message of the InvalidArgument that `call` throws, or "" if it throws none.
template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    return error.message();
  }
  return "";
}

// ---- Sizes.

TEST(BenchSizes, SuffixesAreBinary) {
  const std::vector<std::pair<std::string, std::size_t>> cases = {
      {"8", 8},          {"0", 0},        {"12B", 12},        {"4K", 4096},
      {"4k", 4096},      {"4Ki", 4096},   {"4KiB", 4096},     {"128M", 128 << 20},
      {"3MiB", 3 << 20}, {"1G", 1 << 30}, {"2GiB", 2u << 30}, {"1024G", 1ull << 40}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(parse_size("-b", text), bytes) << text;
  EXPECT_EQ(size_text(128 << 20), "128M");
  EXPECT_EQ(size_text(1536), "1536");
  EXPECT_EQ(size_text(3 << 10), "3K");
}

TEST(BenchSizes, WhatIsNoSizeIsRefused) {
  for (const std::string text : {"", "K", "-8", "8X", "1.5K", "8 K", "KiB", "4KB", "1025G", "99999999999999999999"}) {
    const std::string message = refusal([&] { parse_size("-e", text); });
    EXPECT_TRUE(message.starts_with("-e takes ")) << text << ": " << message;
    EXPECT_NE(message.find('"' + text + '"'), std::string::npos) << message;
  }
}

TEST(BenchSizes, GrowByAFactorOrInSteps) {
  using Sizes = std::vector<std::size_t>;
  EXPECT_EQ(sizes_in({.first = 8, .last = 128, .factor = 4, .step = {}}, 4), (Sizes{8, 32, 128}));
  EXPECT_EQ(sizes_in({.first = 8, .last = 127, .factor = 4, .step = {}}, 4), (Sizes{8, 32}));
  EXPECT_EQ(sizes_in({.first = 8, .last = 20, .factor = 4, .step = 6}, 4), (Sizes{8, 12, 20})) << "rounded down";
  EXPECT_EQ(sizes_in({.first = 4, .last = 16, .factor = 1.5, .step = {}}, 4), (Sizes{4, 8, 12})) << "each once";
  EXPECT_EQ(sizes_in({.first = 8, .last = 8, .factor = 2, .step = {}}, 4), (Sizes{8}));
  EXPECT_EQ(sizes_in({.first = 0, .last = 8, .factor = 2, .step = {}}, 4), (Sizes{0}));
}

TEST(BenchSizes, RangesThatLeadNowhereAreRefused) {
  const auto refused = [](SizeRange range) { return refusal([&] { sizes_in(range, 4); }); };
  EXPECT_EQ(refused({.first = 4096, .last = 1024, .factor = 2, .step = {}}),
            "-b 4K is more than -e 1K; -b is the smallest size and -e the largest");
  EXPECT_EQ(refused({.first = 8, .last = 1024, .factor = 1, .step = {}}), "-f takes a factor of at least 1.001, not 1");
  // Each of these once took minutes, or for ever, to find the next multiple.
  EXPECT_NE(refused({.first = 8, .last = 1024, .factor = std::nextafter(1.0, 2.0), .step = {}}), "");
  EXPECT_EQ(sizes_in({.first = 0, .last = std::size_t{1} << 41, .factor = 2, .step = 1}, std::size_t{1} << 40),
            (std::vector<std::size_t>{0, std::size_t{1} << 40, std::size_t{1} << 41}));
  EXPECT_EQ(refused({.first = 8, .last = 1024, .factor = 2, .step = 0}), "-i takes a step of at least 1 byte");
  EXPECT_EQ(refused({.first = 8, .last = 1 << 20, .factor = 2, .step = 4}),
            "more than 1000 sizes from 8 to 1M; take a larger -i");
}

// ---- The plan.

BenchOptions options_for(const char* collective, std::size_t first = 48, std::size_t last = 48) {
  BenchOptions options;
  options.collective = &collective_named(collective);
  options.sizes = {.first = first, .last = last, .factor = 2, .step = {}};
  return options;
}

TEST(BenchPlan, CountsAreThoseOfTheCall) {
  const auto rows = plan_rows(options_for("all_gather", 48, 200), 3);
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[0].bytes, 48u);
  EXPECT_EQ(rows[0].count, 4u) << "of one rank's part";
  EXPECT_EQ(rows[0].place, Place::OutOfPlace);
  EXPECT_EQ(rows[1].bytes, 48u);
  EXPECT_EQ(rows[1].place, Place::InPlace);
  EXPECT_EQ(rows[5].bytes, 192u);
  EXPECT_EQ(plan_rows(options_for("broadcast"), 3).front().count, 12u) << "of the whole";
}

TEST(BenchPlan, PlacesCanBeChosenAndABarrierHasOneRow) {
  BenchOptions options = options_for("reduce_scatter");
  options.in_place = false;
  ASSERT_EQ(plan_rows(options, 3).size(), 1u);
  EXPECT_EQ(plan_rows(options, 3)[0].place, Place::OutOfPlace);
  const auto rows = plan_rows(options_for("barrier"), 3);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].bytes, 0u);
}

TEST(BenchPlan, SaysWhatWouldFit) {
  const auto refused = [](const BenchOptions& options) { return refusal([&] { plan_rows(options, 3); }); };
  EXPECT_EQ(refused(options_for("all_reduce", 10)), "-b 10 is no multiple of 4 bytes (float32); take 8 or 12");
  EXPECT_EQ(refused(options_for("all_reduce", 3)), "-b 3 is no multiple of 4 bytes (float32); take 4");
  EXPECT_EQ(refused(options_for("all_reduce", 8, 49)), "-e 49 is no multiple of 4 bytes (float32); take 48 or 52");
  EXPECT_EQ(refused(options_for("all_gather", 32)),
            "-b 32 is no multiple of 12 bytes (one float32 for each of 3 ranks); take 24 or 36");
  EXPECT_EQ(refused(options_for("all_gather", 24, 1 << 20)), "") << "a bound need not be a size";

  BenchOptions options = options_for("broadcast");
  options.root = 3;
  EXPECT_EQ(refused(options), "--root 3 is no rank of 3: take one from 0 to 2");
  options = options_for("broadcast");
  options.in_place = false;
  EXPECT_EQ(refused(options), "broadcast works in place only; leave out --out-of-place");
  options = options_for("all_reduce");
  options.root = 1;
  EXPECT_EQ(refused(options), "all_reduce has no root; leave out --root");
  options = options_for("all_gather");
  options.reduce = ReduceOp::Max;
  EXPECT_EQ(refused(options), "all_gather does not reduce; leave out --op");
}

TEST(BenchPlan, UnknownNamesAreAnsweredWithTheKnownOnes) {
  EXPECT_NE(refusal([] { collective_named("allreduce"); }).find("take one of all_reduce, "), std::string::npos);
  EXPECT_EQ(refusal([] { dtype_named("quad"); }),
            "--type takes one of float, double, half, bfloat16, int32, int64, uint8, float32, float64, float16, not "
            "\"quad\"");
  EXPECT_EQ(refusal([] { reduce_op_named("prod"); }), "--op takes one of sum, mean, min, max, not \"prod\"");
  EXPECT_EQ(refusal([] { transport_named("ib"); }), "--transport takes one of auto, shm, tcp, not \"ib\"");
  EXPECT_EQ(refusal([] { algorithm_named("tree"); }),
            "--algorithm takes one of auto, one_shot, slices, chunk_queue, direct, ring, hierarchical, not \"tree\"");
  EXPECT_EQ(refusal([] { buffers_named("gpu"); }), "--buffers takes one of registered, private, not \"gpu\"");
  EXPECT_EQ(dtype_named("half"), Dtype::Float16);
  EXPECT_EQ(dtype_named("float64"), Dtype::Float64);
}

// ---- Statistics.

TEST(BenchStatistics, QuantilesAreValuesThatWereMeasured) {
  EXPECT_EQ(quantile({5}, 0.99), 5);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.5), 2);
  EXPECT_EQ(quantile({3, 1, 2}, 0.5), 2);
  std::vector<double> hundred;
  for (int i = 100; i > 0; --i) hundred.push_back(i);
  EXPECT_EQ(quantile(hundred, 0.99), 99);
  EXPECT_EQ(quantile(hundred, 1), 100);
}

TEST(BenchStatistics, TheSlowestRankCountsInEachSample) {
  const std::vector<std::int64_t> of_three_ranks{1, 20, 3, 10, 2, 3, 5, 6, 4};
  EXPECT_EQ(slowest_rank(of_three_ranks, 3), (std::vector<double>{10, 20, 4}));
  EXPECT_EQ(apart(of_three_ranks, 3), (std::vector<double>{9, 18, 1}));
}

TEST(BenchStatistics, WhereRanksOutnumberCoresTheirSharesAddUp) {
  const RooflineSamples samples{.batch = 1, .duration_ns = {9, 9, 9, 9}, .cpu_ns = {4, 5, 6, 2}};
  EXPECT_EQ(roofline_times(samples, 2, 2), (std::vector<double>{9, 9}));
  EXPECT_EQ(roofline_times(samples, 2, 1), (std::vector<double>{10, 7}));
  EXPECT_EQ(roofline_times({.batch = 1, .duration_ns = {9, 9, 9}, .cpu_ns = {8, 1, 1}}, 3, 2), (std::vector<double>{8}))
      << "one share cannot be split";
}

TEST(BenchStatistics, BusBandwidthIsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(collective_named("all_reduce"), 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(collective_named("all_reduce"), 2), 1);
  for (const char* name : {"reduce_scatter", "all_gather", "gather", "scatter", "all_to_all"}) {
    EXPECT_DOUBLE_EQ(bus_factor(collective_named(name), 4), 0.75) << name;
  }
  for (const char* name : {"broadcast", "reduce"}) EXPECT_DOUBLE_EQ(bus_factor(collective_named(name), 4), 1) << name;
}

TEST(BenchStatistics, ARowIsOfOneCall) {
  RowSamples samples;
  samples.operation = {.batch = 10,
                       .entered_ns = {0, 1000, 3000, 1500},
                       .duration_ns = {4000, 8000, 5000, 2000},
                       .context_switches = 30};
  samples.roofline = RooflineSamples{.batch = 100, .duration_ns = {20000, 20000, 10000, 25000}, .cpu_ns = {0, 0, 0, 0}};
  samples.wrong = 7;
  const BenchResult result = summarize(options_for("all_reduce"), {.bytes = 6000, .count = 1500}, samples, 2, 2);
  EXPECT_DOUBLE_EQ(result.p50_us, 0.5) << "of 5000 and 8000 ns";
  EXPECT_DOUBLE_EQ(result.p99_us, 0.8);
  EXPECT_DOUBLE_EQ(result.algbw_gbps, 12);
  EXPECT_DOUBLE_EQ(result.busbw_gbps, 12);
  EXPECT_DOUBLE_EQ(result.roofline_us.value(), 0.2) << "of 20000 and 25000 ns";
  EXPECT_DOUBLE_EQ(result.roofline_fraction.value(), 0.4);
  EXPECT_DOUBLE_EQ(result.skew_us, 0.5);
  EXPECT_DOUBLE_EQ(result.context_switches, 1.5);
  EXPECT_EQ(result.wrong, 7u);
  EXPECT_EQ(result.samples, 2u);
}

// ---- The check.

constexpr const char* kCollectives[] = {"all_reduce", "reduce_scatter", "all_gather", "reduce",
                                        "broadcast",  "gather",         "scatter",    "all_to_all"};
constexpr Dtype kTypes[] = {Dtype::Float32, Dtype::Float64, Dtype::Float16, Dtype::BFloat16,
                            Dtype::Int32,   Dtype::Int64,   Dtype::UInt8};

TEST(BenchCheck, EveryCollectiveIsRightAndAChangedElementIsCounted) {
  const std::uint64_t seed = test::seed();
  for (const char* name : kCollectives) {
    for (const Dtype dtype : kTypes) {
      for (const int n : {1, 2, 3}) {
        BenchOptions options = options_for(name);
        options.dtype = dtype;
        options.root = options.collective->rooted ? n - 1 : 0;
        const std::size_t unit = size_unit(*options.collective, dtype, n);
        options.sizes.first = options.sizes.last = 5000 * unit;
        test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
          const auto rows = plan_rows(options, n);
          const BenchOperands operands(comm, options, rows, BenchBuffers::Registered);
          for (const BenchRow& row : rows) {
            const auto what = [&] {
              return fmt::format("{} of {} on rank {} of {}, {} place, seed {}", name, to_string(dtype), comm.rank(), n,
                                 to_string(row.place), seed);
            };
            const Operation operation = operands.operation(row);
            operands.spoil_output(row);
            operands.write_input(row);
            comm.barrier();
            comm.run(operation);
            EXPECT_EQ(operands.count_wrong(row), 0u) << what();
            const std::size_t out_bytes = out_extent(operation, comm.rank(), n) * size_of(dtype);
            if (out_bytes > 0) {
              std::mt19937_64 random(seed + static_cast<std::uint64_t>(comm.rank()));
              operation.out[random() % out_bytes] ^= std::byte{0x40};
              EXPECT_EQ(operands.count_wrong(row), 1u) << what();
            }
            comm.barrier();
          }
        });
      }
    }
  }
}

TEST(BenchCheck, ACollectiveThatDoesNothingIsSeen) {
  for (const char* name : kCollectives) {
    const BenchOptions options = options_for(name, 60'000, 60'000);
    test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      const auto rows = plan_rows(options, 2);
      const BenchOperands operands(comm, options, rows, BenchBuffers::Registered);
      for (const BenchRow& row : rows) {
        operands.spoil_output(row);
        operands.write_input(row);
        const bool has_it_already = options.collective->in_on_root && comm.rank() == options.root;
        if (!has_it_already && out_extent(operands.operation(row), comm.rank(), 2) > 0) {
          EXPECT_GT(operands.count_wrong(row), row.count / 2) << name << " on rank " << comm.rank();
        }
      }
    });
  }
}

/// So its time is that of the same work, and not of less.
TEST(BenchRoofline, AllSharesTogetherGiveTheResult) {
  for (const char* name : kCollectives) {
    for (const int n : {2, 3}) {
      BenchOptions options = options_for(name, 60'000, 60'000);
      options.root = options.collective->rooted ? n - 1 : 0;
      test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
        const auto rows = plan_rows(options, n);
        const BenchOperands operands(comm, options, rows, BenchBuffers::Registered);
        const Roofline roofline(comm, options, operands);
        for (const BenchRow& row : rows) {
          operands.spoil_output(row);
          operands.write_input(row);
          comm.barrier();
          roofline.share(row).run();
          comm.barrier();
          EXPECT_EQ(operands.count_wrong(row), 0u)
              << name << " on rank " << comm.rank() << " of " << n << ", " << to_string(row.place) << " place";
          comm.barrier();
        }
      });
    }
  }
}

TEST(BenchCheck, ReductionsAreThoseOfTheInputs) {
  constexpr int kWorld = 5;
  constexpr std::size_t kCount = 9000, kFirst = 77;
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Mean}) {
    const Pattern pattern(Dtype::Float64, op, kWorld);
    std::vector<double> result(kCount), input(kCount);
    for (int rank = 0; rank < kWorld; ++rank) {
      pattern.write(std::as_writable_bytes(std::span(input)), rank, kFirst);
      for (std::size_t i = 0; i < kCount; ++i) {
        const double so_far = result[i];
        if (rank == 0) result[i] = input[i];
        else if (op == ReduceOp::Min) result[i] = std::min(so_far, input[i]);
        else if (op == ReduceOp::Max) result[i] = std::max(so_far, input[i]);
        else result[i] = so_far + input[i];
      }
    }
    if (op == ReduceOp::Mean) {
      for (double& value : result) value *= 1.0 / kWorld;
    }
    EXPECT_EQ(pattern.count_wrong_reduced(std::as_bytes(std::span(result)), kFirst), 0u) << to_string(op);
    EXPECT_GT(pattern.count_wrong_reduced(std::as_bytes(std::span(result)), kFirst + 1024), kCount / 2)
        << to_string(op) << ": what lies in a wrong place is wrong";
  }
}

// ---- What is shown.

TEST(BenchReport, WhatWasNotMeasuredIsADashAndNull) {
  BenchReport report{.options = options_for("all_reduce"), .facts = {}, .results = {}};
  report.options.check = false;
  BenchResult result;
  result.row = {.bytes = 48, .count = 12};
  result.algorithm = "ring";
  result.p50_us = 3;
  report.results = {result};
  const std::string row = table_row(report.options, result);
  EXPECT_NE(row.find(" - "), std::string::npos) << row;
  EXPECT_EQ(row.find("%"), std::string::npos);
  const std::string json = bench_json(report);
  EXPECT_NE(json.find("\"wrong\": null"), std::string::npos);
  EXPECT_NE(json.find("\"roofline_fraction\": null"), std::string::npos);
  EXPECT_NE(table_foot(report).find("not checked"), std::string::npos);
}

TEST(BenchReport, LinesOfTheTableAreAligned) {
  const BenchOptions options = options_for("all_reduce");
  BenchResult result;
  result.row = {.bytes = std::size_t{1} << 30, .count = std::size_t{1} << 28};
  result.algorithm = "one_shot";
  result.p50_us = 1234567.89, result.p99_us = 9999999.99, result.algbw_gbps = 123.456, result.busbw_gbps = 234.567;
  result.roofline_fraction = 0.987, result.skew_us = 1234.5, result.context_switches = 99.5, result.wrong = 0;
  const std::string row = table_row(options, result), head = table_head(options, {});
  const std::size_t begin = head.find("       bytes");
  ASSERT_NE(begin, std::string::npos);
  EXPECT_EQ(row.size(), head.find('\n', begin) + 1 - begin) << head << row;
  EXPECT_LE(row.size(), 131u);
}

}  // namespace
}  // namespace paceline::tools
