#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "paceline/tools/commands.h"
#include "paceline/tools/ps/jobs.h"

namespace paceline::tools {
namespace {

constexpr const char* kHelp =
    "Examples:\n"
    "  paceline ps\n"
    "      The jobs that you have running on this host, with one line a rank.\n"
    "  paceline ps 4711\n"
    "      One job, by its name or by the number of any of its processes, with the last 16 operations of each rank.\n"
    "  paceline ps --watch\n"
    "      The same every second until Ctrl-C. A rank that the others wait for stands out by what it does not wait "
    "in.\n"
    "  paceline ps --json\n"
    "      For programs.\n"
    "\n"
    "state     of the process, as the kernel has it: T is stopped (SIGSTOP), D waits for a disk or a network file "
    "system.\n"
    "beat      how long ago the rank's heartbeat was: one every 0.5 s, from a thread of its own. After 4 s (`paceline "
    "run\n"
    "          --silence`) the launcher takes the rank for lost. \"-\" before Comm::from_env() and after its end.\n"
    "step      of training, where the program trains with paceline.\n"
    "where     the operation that the rank waits in and since when, or the last that it completed.\n"
    "\n"
    "It reads what the launcher and its workers keep in shared memory, found through /proc; it disturbs nobody.\n"
    "Exit codes: 0 done, also when there is no job; 1 there is no such job; 64 bad use.\n";

nlohmann::json to_json(const JobView& job);
void print(const std::vector<JobView>& jobs, bool operations);
int show(const std::string& wanted, bool json);

}  // namespace

void add_ps_command(CLI::App& app, Invocation& invocation) {
  struct Arguments {
    std::string job;
    bool watch = false, json = false;
  };
  CLI::App* command = app.add_subcommand("ps", "Show running jobs: where each rank is, and what it waits for");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("job", arguments->job, "Only this one: its name, or a process of it")->type_name("JOB|PID");
  command->add_flag("--watch", arguments->watch, "Again every second, until Ctrl-C");
  command->add_flag("--json", arguments->json, "As JSON, one document");
  command->footer(kHelp);
  command->callback([arguments, &invocation] {
    if (arguments->watch && arguments->json) throw CLI::ValidationError("--watch and --json do not go together");
    while (arguments->watch) {
      fmt::print("\033[H\033[2J");
      show(arguments->job, false);
      std::fflush(stdout);
      if (std::ferror(stdout) != 0) break;
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    invocation.exit_code = show(arguments->job, arguments->json);
  });
}

namespace {

int show(const std::string& wanted, bool json) {
  std::vector<JobView> jobs = running_jobs();
  if (!wanted.empty()) std::erase_if(jobs, [&](const JobView& job) { return !job.is(wanted); });
  if (json) {
    nlohmann::json all = nlohmann::json::array();
    for (const JobView& job : jobs) all.push_back(to_json(job));
    // Command lines may be no UTF-8, or cut off within a character.
    fmt::print("{}\n", nlohmann::json{{"schema", "paceline.ps/1"}, {"jobs", all}}.dump(
                           2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    print(jobs, !wanted.empty());
  }
  if (wanted.empty() || !jobs.empty()) return 0;
  fmt::print(stderr, "paceline ps: there is no job {} of yours on this host\n", wanted);
  return 1;
}

void print(const std::vector<JobView>& jobs, bool operations) {
  if (jobs.empty() && !operations) fmt::print("no jobs\n");
  for (const JobView& job : jobs) {
    fmt::print("job {} (launcher {}, {:.0f} s, {} of {} ranks on {}): {}\n", job.name, job.launcher, seconds(job.age),
               job.ranks.size(), job.world_size, job.host, job.program);
    if (!job.failure.empty()) fmt::print("  failed: {}\n", job.failure);
    fmt::print("{}", rank_table(job.ranks, job.at));
    if (operations) fmt::print("{}", operations_text(job.ranks, StatusSlot::kOperations, job.at));
  }
}

nlohmann::json to_json(const JobView& job) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const RankView& rank : job.ranks) {
    nlohmann::json operations = nlohmann::json::array();
    for (const OperationView& one : rank.operations) {
      operations.push_back({{"number", one.number},
                            {"communicator", one.communicator},
                            {"text", one.text},
                            {"state", one.failed  ? "failed"
                                      : one.done  ? "done"
                                      : one.waits ? "waits"
                                                  : "under way"},
                            {"entered_s_ago", seconds(job.at - one.entered)},
                            {"took_s", one.timed ? nlohmann::json(seconds(one.completed - one.entered)) : nullptr}});
    }
    const OperationView* const waiting = rank.waiting();
    const OperationView* const last = rank.last_completed();
    ranks.push_back({{"rank", rank.rank},
                     {"pid", rank.pid},
                     {"state", rank.ended ? "ended" : process_state(rank.pid)},
                     {"heartbeat_s_ago", rank.beats ? nlohmann::json(seconds(rank.beat_age)) : nullptr},
                     {"step", rank.step != 0 ? nlohmann::json(rank.step) : nullptr},
                     {"last_completed", last != nullptr ? nlohmann::json(last->text) : nullptr},
                     {"waits_in", waiting != nullptr ? nlohmann::json(waiting->text) : nullptr},
                     {"waits_s", waiting != nullptr ? nlohmann::json(seconds(job.at - waiting->waits_from)) : nullptr},
                     {"operations", operations}});
  }
  return {{"job", job.name},
          {"launcher", job.launcher},
          {"age_s", seconds(job.age)},
          {"host", job.host},
          {"program", job.program},
          {"world_size", job.world_size},
          {"failure", job.failure.empty() ? nlohmann::json(nullptr) : nlohmann::json(job.failure)},
          {"ranks", ranks}};
}

}  // namespace
}  // namespace paceline::tools
