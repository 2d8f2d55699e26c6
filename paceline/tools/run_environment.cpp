#include "paceline/tools/run_environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <string_view>

namespace paceline::tools {

std::vector<std::string> worker_environment(const RunOptions& options, const JobFacts& facts, int rank) {
  std::map<std::string, std::string, std::less<>> variables;
  const auto put = [&](std::string_view assignment) {
    const std::size_t equals = assignment.find('=');
    if (equals != std::string_view::npos) {
      variables.insert_or_assign(std::string(assignment.substr(0, equals)), std::string(assignment.substr(equals + 1)));
    }
  };
  for (char** variable = environ; *variable != nullptr; ++variable) put(*variable);

  // Workers that each use all cores slow each other down, so one thread is the default.
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}) {
    if (options.threads_per_worker) {
      variables.insert_or_assign(name, std::to_string(*options.threads_per_worker));
    } else {
      variables.try_emplace(name, "1");
    }
  }
  // By default glibc gives large blocks back to the system and faults them in again in every step.
  if (options.keep_freed_memory) {
    variables.try_emplace("MALLOC_TRIM_THRESHOLD_", std::to_string(std::uint64_t{1} << 40));
    variables.try_emplace("MALLOC_MMAP_MAX_", "0");
  }
  for (const std::string& assignment : options.environment) put(assignment);

  const std::string world_size = std::to_string(options.workers);
  variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = world_size;
  variables["GROUP_RANK"] = "0";
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(facts.master_port);
  variables["PACELINE_STORE"] = facts.store_address;
  variables["PACELINE_BOARD"] = facts.board_address;
  variables["PACELINE_JOB"] = facts.id;
  variables["PACELINE_PROGRESS"] = facts.terminal ? "bar" : "lines";
  // One that is left over from an outer job would be wrong.
  variables.erase("PACELINE_RUN_DIR");
  if (options.run_dir) variables["PACELINE_RUN_DIR"] = *options.run_dir;
  if (options.transport) variables["PACELINE_TRANSPORT"] = *options.transport;
  if (options.timeout_s) variables["PACELINE_TIMEOUT"] = std::to_string(*options.timeout_s);

  std::vector<std::string> assignments;
  assignments.reserve(variables.size());
  for (const auto& [name, value] : variables) assignments.push_back(fmt::format("{}={}", name, value));
  return assignments;
}

}  // namespace paceline::tools
