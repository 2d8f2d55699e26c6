#include "paceline/launch/worker_environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <string_view>

namespace paceline::launch {

JobFacts facts_of(const Placement& place, const std::string& secret_file) {
  return {.id = place.job,
          .store_address = place.store_address,
          .node = place.node,
          .nodes = place.nodes,
          .first_rank = place.first_rank,
          .world_size = place.world_size,
          .master_address = place.master_address,
          .master_port = place.master_port,
          .bind = place.bind,
          .secret_file = secret_file,
          .secret = place.secret ? place.secret->hex() : ""};
}

std::vector<std::string> worker_environment(const RunOptions& options, const JobFacts& facts, int local_rank) {
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
  // What it holds back would be lost with a worker that is killed.
  variables.try_emplace("PYTHONUNBUFFERED", "1");
  // By default glibc gives large blocks back to the system and faults them in again in every step.
  if (options.keep_freed_memory) {
    variables.try_emplace("MALLOC_TRIM_THRESHOLD_", std::to_string(std::uint64_t{1} << 40));
    variables.try_emplace("MALLOC_MMAP_MAX_", "0");
  }
  for (const std::string& assignment : options.environment) put(assignment);

  variables["RANK"] = std::to_string(facts.first_rank + local_rank);
  variables["WORLD_SIZE"] = std::to_string(facts.world_size);
  variables["LOCAL_RANK"] = std::to_string(local_rank);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(options.workers);
  variables["GROUP_RANK"] = std::to_string(facts.node);
  variables["GROUP_WORLD_SIZE"] = std::to_string(facts.nodes);
  variables["MASTER_ADDR"] = facts.master_address;
  variables["MASTER_PORT"] = std::to_string(facts.master_port);
  variables["PACELINE_STORE"] = facts.store_address;
  variables["PACELINE_JOB_STATUS"] = facts.job_status_address;
  variables["PACELINE_JOB"] = facts.id;
  variables["PACELINE_PROGRESS"] = facts.terminal ? "bar" : "lines";
  // One that is left over from an outer job would be wrong.
  variables.erase("PACELINE_RUN_DIR");
  if (options.run_dir) variables["PACELINE_RUN_DIR"] = *options.run_dir;
  if (options.transport) variables["PACELINE_TRANSPORT"] = *options.transport;
  if (options.timeout_s) variables["PACELINE_TIMEOUT"] = std::to_string(*options.timeout_s);

  if (facts.nodes > 1) {
    variables["PACELINE_BIND"] = facts.bind;
    variables.erase("PACELINE_SECRET");
    variables.erase("PACELINE_SECRET_FILE");
    if (facts.secret_file.empty()) variables["PACELINE_SECRET"] = facts.secret;
    else variables["PACELINE_SECRET_FILE"] = facts.secret_file;
  }

  std::vector<std::string> assignments;
  assignments.reserve(variables.size());
  for (const auto& [name, value] : variables) assignments.push_back(fmt::format("{}={}", name, value));
  return assignments;
}

}  // namespace paceline::launch
