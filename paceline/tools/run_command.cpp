#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "paceline/base/error.h"
#include "paceline/base/exit_codes.h"
#include "paceline/launch/launcher.h"
#include "paceline/launch/nodes/node_arguments.h"
#include "paceline/launch/option_numbers.h"
#include "paceline/launch/options.h"
#include "paceline/tools/commands.h"

namespace paceline::tools {
namespace {

constexpr int kMaxWorkers = 1024;
constexpr double kMaxSeconds = 1e6;

constexpr const char* kHelp =
    "Examples:\n"
    "  paceline run -n 4 -- ./my_program --epochs 3\n"
    "      Four workers. Each line they print is tagged with its rank. Exit code 0 when all succeed.\n"
    "  paceline run -n 4 --run-dir runs/first -- ./my_program\n"
    "      The program finds the folder in PACELINE_RUN_DIR.\n"
    "  paceline run -n 2 --threads-per-worker 4 --env LOG_LEVEL=debug -- ./my_program\n"
    "      Four compute threads a worker (the default is one), and a variable for all of them.\n"
    "  paceline run -n 2 --no-tag -- sh -c 'echo \"$RANK of $WORLD_SIZE\"'\n"
    "      Any program works, also one that does not use the library.\n"
    "  paceline run --nnodes 2 --node-rank 0 --rendezvous node0:4000 -n 4 -- ./my_program\n"
    "      The first of two hosts. It prints the command line for the other one.\n"
    "  paceline run --hosts node0,node1:8 -n 4 -- ./my_program\n"
    "      The same from one terminal, by ssh; eight workers on node1. paceline is at the same place on both.\n"
    "\n"
    "Each worker finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR,\n"
    "MASTER_PORT, PACELINE_STORE, PACELINE_JOB_STATUS, PACELINE_JOB and PACELINE_PROGRESS in its environment, and "
    "/dev/null\n"
    "as its input.\n"
    "\n"
    "When a worker fails, the others get --grace seconds to end by themselves, then SIGTERM and 5 s later SIGKILL.\n"
    "So it is when a worker is silent: it lives, but sends no heartbeat for --silence seconds. A slow worker, even if\n"
    "it computes for an hour, is no failure; after --stuck seconds of waiting for it, a table shows where all ranks "
    "are,\n"
    "as `paceline ps` does at any time.\n"
    "The end of the output says which rank failed first and how, and the exit code is that worker's (128 + signal\n"
    "if a signal killed it). No process is left behind.\n"
    "\n"
    "Ctrl-C, SIGTERM and SIGHUP go to all workers once. Then they have --grace seconds to save what they want to "
    "keep;\n"
    "who has not ended by then gets SIGTERM, 5 s later SIGKILL, and is named. A second signal kills all at once.\n"
    "SIGUSR1 and SIGUSR2 go to all workers, and the job goes on: what a scheduler warns with before it takes the host\n"
    "away. A program that does not handle them ends by them.\n"
    "Over several hosts all launchers end together, with the same code.\n"
    "Other exit codes: 64 bad use, 69 a host missing or lost, 70 the launcher itself failed, 74 output not writable,\n"
    "78 ranks disagreed or wait for each other (MISMATCH), or hosts do not belong together, 126 program not "
    "executable, 127 program not "
    "found,\n"
    "130 Ctrl-C, 141 the reader of the output went away,\n"
    "143 SIGTERM.\n";

/// What the options were before they were checked.
struct Arguments {
  std::string workers, threads, timeout, run_dir, transport;
  std::string grace, silence = "4", stuck = "30";
  std::vector<std::string> environment;
  launch::NodeArguments nodes;
  bool no_tag = false;
  bool return_memory = false;
};

/// CLI11 knows nothing of the program after the dashes.
class RunFormatter final : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: paceline run -n N [OPTIONS] -- PROGRAM [ARGUMENTS...]\n";
  }
};

double seconds_from_zero(const std::string& option, const std::string& text);
std::chrono::milliseconds milliseconds_from_zero(const std::string& option, const std::string& text);
std::chrono::milliseconds checked_silence(const std::string& text);
std::string checked_variable(const std::string& text);
std::string checked_transport(const std::string& text);
std::vector<std::string> program_of(const CLI::App& command, const Invocation& invocation);

/// The file to execute, or why there is none.
struct Lookup {
  std::string executable = {};
  int exit_code = 0;
  std::string problem = {};
};
Lookup find_program(const std::string& name);

launch::RunOptions options_of(const CLI::App& command, const Invocation& invocation, const Arguments& arguments) {
  launch::RunOptions options;
  options.workers = launch::whole_number("-n", arguments.workers, 1, kMaxWorkers);
  options.program = program_of(command, invocation);
  options.tag = !arguments.no_tag;
  options.keep_freed_memory = !arguments.return_memory;
  if (!arguments.grace.empty()) options.grace = milliseconds_from_zero("--grace", arguments.grace);
  options.watch.silence = checked_silence(arguments.silence);
  options.watch.stuck = milliseconds_from_zero("--stuck", arguments.stuck);
  if (!arguments.timeout.empty()) {
    options.timeout_s = launch::whole_number("--timeout", arguments.timeout, 1, 1'000'000);
  }
  if (!arguments.threads.empty()) {
    options.threads_per_worker = launch::whole_number("--threads-per-worker", arguments.threads, 1, 4096);
  }
  if (!arguments.transport.empty()) options.transport = checked_transport(arguments.transport);
  if (!arguments.run_dir.empty()) options.run_dir = std::filesystem::absolute(arguments.run_dir).string();
  for (const std::string& variable : arguments.environment) {
    options.environment.push_back(checked_variable(variable));
  }
  options.nodes = node_options(arguments.nodes, options);
  return options;
}

}  // namespace

void add_run_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      app.add_subcommand("run", "Start the workers of a job, on this host or on several, and watch over them");
  const auto arguments = std::make_shared<Arguments>();
  command->formatter(std::make_shared<RunFormatter>());
  command->add_option("-n,--workers", arguments->workers, "How many workers")->type_name("N")->required();
  command
      ->add_option("--threads-per-worker", arguments->threads,
                   "Compute threads a worker: sets OMP_, OPENBLAS_ and MKL_NUM_THREADS (1 unless they are set)")
      ->type_name("K");
  command
      ->add_option("--transport", arguments->transport,
                   "How workers reach each other: auto (shared memory on one host, TCP between hosts), shm or tcp: "
                   "PACELINE_TRANSPORT")
      ->type_name("auto|shm|tcp");
  command->add_option("--run-dir", arguments->run_dir, "A folder for the job's files: PACELINE_RUN_DIR")
      ->type_name("DIR");
  command->add_option("--timeout", arguments->timeout, "How long a rank waits for another (300): PACELINE_TIMEOUT")
      ->type_name("SECONDS");
  command
      ->add_option("--grace", arguments->grace,
                   "How long workers get to end by themselves: after Ctrl-C or SIGTERM (30), and the others after a "
                   "failure (2)")
      ->type_name("SECONDS");
  command
      ->add_option("--silence", arguments->silence,
                   "How long a worker may live without a heartbeat (4), e.g. stopped by SIGSTOP; 0: forever")
      ->type_name("SECONDS");
  command
      ->add_option("--stuck", arguments->stuck,
                   "When ranks wait in an operation for as long, say where all are (30); 0: never")
      ->type_name("SECONDS");
  command->add_option("--env", arguments->environment, "A variable for the workers; may be given more than once")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_flag("--no-tag", arguments->no_tag, "Do not put \"[rank R] \" in front of lines");
  command->add_flag("--return-memory", arguments->return_memory,
                    "Leave glibc's malloc alone: it gives freed blocks back to the system, and faults them in again in "
                    "each step. Without this, workers keep them (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_MAX_)");
  launch::add_node_options(*command, arguments->nodes);
  command->footer(kHelp);
  command->prefix_command();  // the first word that is no option begins the program
  command->callback([command, arguments, &invocation] {
    try {
      launch::RunOptions options = options_of(*command, invocation, *arguments);
      const auto find = [&](const std::string& name, std::string& executable) {
        const Lookup found = find_program(name);
        executable = found.executable;
        if (found.exit_code != 0) fmt::print(stderr, "paceline run: {}\n", found.problem);
        return invocation.exit_code = found.exit_code;
      };
      if (find(options.program.front(), options.executable) == 0 &&
          (!options.nodes || options.nodes->ssh.empty() || find(options.nodes->ssh[0], options.nodes->ssh[0]) == 0)) {
        invocation.exit_code = launch::run_launcher(options);
      }
      if (options.nodes && options.nodes->made_secret) ::unlink(options.nodes->secret_file.c_str());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::InvalidArgument) throw;
      fmt::print(stderr, "paceline run: {}\n", error.message());
      invocation.exit_code = kExitUsage;
    }
  });
}

namespace {

std::chrono::milliseconds milliseconds_from_zero(const std::string& option, const std::string& text) {
  return std::chrono::milliseconds(std::llround(seconds_from_zero(option, text) * 1000));
}

// Less, and a heartbeat that is late for want of a processor would be a death.
std::chrono::milliseconds checked_silence(const std::string& text) {
  const auto silence = milliseconds_from_zero("--silence", text);
  if (silence.count() == 0 || silence >= std::chrono::seconds(1)) return silence;
  throw CLI::ValidationError("--silence", fmt::format("takes 0, or at least 1 second, not \"{}\"", text));
}

double seconds_from_zero(const std::string& option, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= kMaxSeconds)) {
    throw CLI::ValidationError(option, fmt::format("takes a number of seconds, not \"{}\"", text));
  }
  return value;
}

std::string checked_variable(const std::string& text) {
  if (const std::size_t equals = text.find('='); equals == std::string::npos || equals == 0) {
    throw CLI::ValidationError("--env", fmt::format("takes KEY=VALUE, not \"{}\"", text));
  }
  return text;
}

std::string checked_transport(const std::string& text) {
  if (text == "auto" || text == "shm" || text == "tcp") return text;
  throw CLI::ValidationError("--transport", fmt::format("takes auto, shm or tcp, not \"{}\"", text));
}

std::vector<std::string> program_of(const CLI::App& command, const Invocation& invocation) {
  std::vector<std::string> program = command.remaining();
  if (!program.empty() && program.front().starts_with('-')) {
    throw CLI::ValidationError("unknown option " + program.front());
  }
  // `run prog -- x`: the program began before the dashes, so they are its own.
  if (invocation.has_dashes && !program.empty()) program.emplace_back("--");
  program.insert(program.end(), invocation.after_dashes.begin(), invocation.after_dashes.end());
  if (program.empty()) throw CLI::ValidationError("no program to run; give it after --");
  return program;
}

bool is_file(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && !S_ISDIR(info.st_mode);
}

Lookup find_program(const std::string& name) {
  const auto judge = [](const std::string& path) -> Lookup {
    if (::access(path.c_str(), X_OK) == 0) return {path};
    return {{}, kExitNotExecutable, fmt::format("{} is not executable; chmod +x it, or name its interpreter", path)};
  };
  if (name.find('/') != std::string::npos) {
    if (std::filesystem::is_directory(name)) return {{}, kExitNotExecutable, name + " is a directory, not a program"};
    if (is_file(name)) return judge(name);
    return {{}, kExitNotFound, fmt::format("there is no program {}", name)};
  }
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path;
  std::optional<Lookup> unusable;
  while (!name.empty()) {
    const std::size_t colon = rest.find(':');
    const std::string_view directory = rest.substr(0, colon);
    const std::string candidate = directory.empty() ? "./" + name : fmt::format("{}/{}", directory, name);
    if (is_file(candidate)) {
      Lookup found = judge(candidate);
      if (found.exit_code == 0) return found;
      if (!unusable) unusable = found;
    }
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  if (unusable) return *unusable;
  const bool here = !name.empty() && is_file(name);
  return {{},
          kExitNotFound,
          fmt::format("\"{}\" was not found in PATH{}", name, here ? fmt::format("; did you mean ./{} ?", name) : "")};
}

}  // namespace
}  // namespace paceline::tools
