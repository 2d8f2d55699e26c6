#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "paceline/base/cpu.h"
#include "paceline/base/error.h"
#include "paceline/launch/option_numbers.h"
#include "paceline/tools/bench/names.h"
#include "paceline/tools/bench/options.h"
#include "paceline/tools/bench/plan.h"
#include "paceline/tools/bench/start.h"
#include "paceline/tools/bench/worker.h"
#include "paceline/tools/commands.h"

namespace paceline::tools {
namespace {

constexpr int kMaxWorkers = 1024;

constexpr const char* kHelp =
    "Examples:\n"
    "  paceline bench all_reduce -n 4\n"
    "      Four workers on this machine, 8 bytes to 128 MiB of float32, each size four times the one before.\n"
    "  paceline bench all_reduce -n 2 -b 8 -e 128M -f 2 --json all_reduce.json --plot all_reduce.svg\n"
    "      Each size twice the one before; the figures for programs, and a picture.\n"
    "  paceline bench reduce_scatter -n 4 -b 64K -e 1M -i 64K --type half --op max --dirty\n"
    "      Sizes in steps of 64 KiB, and inputs that are written anew before each call, as gradients are.\n"
    "  paceline run -n 2 -- paceline bench broadcast --root 1\n"
    "      Inside a job of `paceline run` it is a worker, and takes the number of ranks from there.\n"
    "\n"
    "Bytes are those of the larger operand: the buffer of all_reduce, reduce and broadcast; all ranks' parts together\n"
    "for reduce_scatter, all_gather, gather, scatter and all_to_all. Count is the elements of the call: of the whole\n"
    "buffer, or of one part. -b must be a multiple of the type's size, and of one element a rank where there are\n"
    "parts; sizes that follow from it are rounded down to such a multiple.\n"
    "\n"
    "Time is that of the slowest rank: each rank times its own call between two barriers, and of each call the "
    "longest\n"
    "counts; p50 and p99 are over calls. Below 5 us a look at the clock would distort it: there, a sample is a batch "
    "of\n"
    "calls back to back (not with --dirty), divided. algbw is bytes / p50. busbw = algbw x 2(n-1)/n for all_reduce,\n"
    "(n-1)/n for what has parts, 1 for reduce and broadcast, as in nccl-tests; GB is 1e9 bytes.\n"
    "\n"
    "roofline % is how close it comes to the least time: the same kernel (memcpy for what only moves) on the same\n"
    "buffers, all ranks at once on the same cores without a word to each other, measured in turn with the row. It has\n"
    "none over a network, and none for one rank. skew us: how much later than the first the last rank enters, median.\n"
    "csw/op: context switches of all ranks in a call.\n"
    "\n"
    "Inputs are small whole numbers, so results are exact: after the measurement each element is compared on each\n"
    "rank, and #wrong is how many differ (means of floating-point numbers may be off by one in the last place).\n"
    "\n"
    "Exit codes: 1 wrong elements, 64 bad use, 70 a collective failed, 74 output not writable, 130 Ctrl-C.\n";

/// What the options were before they were checked.
struct Arguments {
  std::string collective, workers, from, to, factor, step, type = "float", op = "sum", root = "0";
  std::string transport, algorithm = "auto", buffers = "registered";
  std::string warmup = "5", iterations, seconds = "0.3", json, plot;
  bool no_check = false, check = false, dirty = false, in_place = false, out_of_place = false;
};

class BenchFormatter final : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: paceline bench COLLECTIVE [OPTIONS]\n";
  }
};

BenchOptions options_of(const Arguments& arguments);
void start(const Arguments& arguments, Invocation& invocation);
double number(const std::string& option, const std::string& text);

}  // namespace

void add_bench_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      app.add_subcommand("bench", "Measure a collective: time, bandwidth, and how near the limit it is");
  const auto arguments = std::make_shared<Arguments>();
  const auto option = [&](const char* name, std::string& value, const char* type, const char* text) {
    command->add_option(name, value, text)->type_name(type);
  };
  command->formatter(std::make_shared<BenchFormatter>());
  command->add_option("COLLECTIVE", arguments->collective, "One of " + collective_names())->type_name("")->required();
  option("-n,--workers", arguments->workers, "N", "How many workers to start (the usable cores, at least 2)");
  option("-b,--from", arguments->from, "SIZE", "The smallest size in bytes; K, M and G are binary (8)");
  option("-e,--to", arguments->to, "SIZE", "The largest (128M)");
  option("-f,--factor", arguments->factor, "X", "From one size to the next: times X (4)");
  option("-i,--step", arguments->step, "SIZE", "From one size to the next: SIZE more, instead of -f");
  option("--type", arguments->type, "TYPE", "float, double, half, bfloat16, int32, int64 or uint8 (float)");
  option("--op", arguments->op, "OP", "sum, mean, min or max (sum)");
  option("-r,--root", arguments->root, "RANK", "The root, where there is one (0)");
  option("--transport", arguments->transport, "NAME", "auto, shm or tcp (PACELINE_TRANSPORT, or auto)");
  option("--algorithm", arguments->algorithm, "NAME",
         "auto, or one that the transport has: one_shot, slices, chunk_queue; direct, ring; hierarchical (auto)");
  option("--buffers", arguments->buffers, "KIND",
         "registered: of Comm::allocate(), used where they lie; private: ordinary memory, copied (registered)");
  option("--warmup", arguments->warmup, "N", "Calls before each row (5)");
  option("--iters", arguments->iterations, "N", "Samples of each row, instead of --seconds");
  option("--seconds", arguments->seconds, "S", "How long to measure each row, at least 5 samples (0.3)");
  command->add_flag("--check", arguments->check, "Compare the results (the default)");
  command->add_flag("--no-check", arguments->no_check, "Do not compare the results");
  command->add_flag("--dirty", arguments->dirty, "Rewrite inputs before each call, so that caches do not flatter");
  command->add_flag("--in-place", arguments->in_place, "Only in place (both where there are both)");
  command->add_flag("--out-of-place", arguments->out_of_place, "Only out of place");
  option("--json", arguments->json, "FILE",
         "Write the figures there (docs/bench.md); - for stdout instead of the table");
  option("--plot", arguments->plot, "FILE", "Draw size against time and bandwidth, with the limit: an SVG file");
  command->footer(kHelp);
  command->callback([arguments, &invocation] {
    try {
      start(*arguments, invocation);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::InvalidArgument) throw CLI::ValidationError(error.message());
      throw;
    }
  });
}

namespace {

void start(const Arguments& arguments, Invocation& invocation) {
  if (invocation.has_dashes) throw CLI::ValidationError("takes no program after --");
  BenchOptions options = options_of(arguments);
  const bool worker = is_bench_worker();
  if (worker) {
    const int ranks = launch::whole_number("WORLD_SIZE", std::getenv("WORLD_SIZE"), 1, kMaxWorkers);
    if (!arguments.workers.empty() && options.workers != ranks) {
      throw CLI::ValidationError(
          fmt::format("-n {}, but the job has {} workers; leave out -n inside paceline run", options.workers, ranks));
    }
    options.workers = ranks;
  }
  plan_rows(options, options.workers);  // bad use is told before anything starts
  invocation.exit_code = worker ? run_bench_worker(options) : run_bench_workers(options, invocation.arguments);
}

/// A file that can be written there. A job that measured for minutes must not fail in the end.
std::string writable_file(const std::string& option, const std::string& path) {
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown)) {
    throw CLI::ValidationError(option, fmt::format("takes a file, but {} is a directory", path));
  }
  if (!std::filesystem::is_directory(folder, unknown)) {
    throw CLI::ValidationError(option, fmt::format("there is no directory {}; make it first", folder.string()));
  }
  const bool exists = std::filesystem::exists(path, unknown);
  if (::access(exists ? path.c_str() : folder.c_str(), W_OK) != 0) {
    throw CLI::ValidationError(option,
                               fmt::format("cannot write {}: {}", path, std::generic_category().message(errno)));
  }
  return path;
}

BenchOptions options_of(const Arguments& arguments) {
  BenchOptions options;
  options.collective = &collective_named(arguments.collective);
  options.workers = arguments.workers.empty() ? std::max(2, usable_cpus())
                                              : launch::whole_number("-n", arguments.workers, 1, kMaxWorkers);
  options.dtype = dtype_named(arguments.type);
  options.reduce = reduce_op_named(arguments.op);
  options.root = launch::whole_number("--root", arguments.root, 0, kMaxWorkers);
  const char* job_transport = std::getenv("PACELINE_TRANSPORT");
  if (!arguments.transport.empty()) options.transport = transport_named(arguments.transport);
  else if (job_transport != nullptr && *job_transport != '\0') options.transport = transport_named(job_transport);
  options.algorithm = algorithm_named(arguments.algorithm);
  options.buffers = buffers_named(arguments.buffers);
  options.warmup = launch::whole_number("--warmup", arguments.warmup, 0, 1'000'000);
  if (!arguments.iterations.empty())
    options.iterations = launch::whole_number("--iters", arguments.iterations, 1, 10'000'000);
  options.seconds = number("--seconds", arguments.seconds);
  if (options.seconds > 3600) throw CLI::ValidationError("--seconds", "takes at most an hour, 3600");
  if (arguments.check && arguments.no_check) throw CLI::ValidationError("--check and --no-check exclude each other");
  options.check = !arguments.no_check;
  options.dirty = arguments.dirty;
  options.in_place = arguments.in_place || !arguments.out_of_place;
  options.out_of_place = arguments.out_of_place || !arguments.in_place;

  SizeRange& sizes = options.sizes;
  // The default is for everyone: the smallest size that all ranks have a part of.
  const std::size_t unit = size_unit(*options.collective, options.dtype, options.workers);
  sizes.first = arguments.from.empty() ? (sizes.first + unit - 1) / unit * unit : parse_size("-b", arguments.from);
  sizes.last = arguments.to.empty() ? std::max(sizes.last, sizes.first) : parse_size("-e", arguments.to);
  if (!arguments.factor.empty() && !arguments.step.empty()) {
    throw CLI::ValidationError("-f and -i exclude each other: sizes grow by a factor or in steps");
  }
  if (!arguments.factor.empty()) sizes.factor = number("-f", arguments.factor);
  if (!arguments.step.empty()) sizes.step = parse_size("-i", arguments.step);
  if (!arguments.json.empty()) options.json = arguments.json == "-" ? "-" : writable_file("--json", arguments.json);
  if (!arguments.plot.empty()) options.plot = writable_file("--plot", arguments.plot);
  return options;
}

double number(const std::string& option, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value <= 0) {
    throw CLI::ValidationError(option, fmt::format("takes a number greater than 0, not \"{}\"", text));
  }
  return value;
}

}  // namespace
}  // namespace paceline::tools
