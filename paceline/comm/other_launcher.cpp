#include "paceline/comm/other_launcher.h"

#include <fmt/format.h>

#include <charconv>

namespace paceline {
namespace {

using Variable = std::function<std::optional<std::string>(const char*)>;

/// -1 where it is no whole number.
int number_of(const std::optional<std::string>& text) {
  int value = -1;
  if (!text) return -1;
  const auto read = std::from_chars(text->data(), text->data() + text->size(), value);
  return read.ec == std::errc() && read.ptr == text->data() + text->size() ? value : -1;
}

std::optional<OtherLauncher> one_of_several(const Variable& variable, const char* launcher, const char* size);
std::optional<OtherLauncher> slurm_step(const Variable& variable);

}  // namespace

std::optional<OtherLauncher> find_other_launcher(const Variable& variable) {
  if (variable("TORCHELASTIC_RUN_ID")) {
    if (auto found = one_of_several(variable, "torchrun", "WORLD_SIZE")) return found;
  }
  if (auto found = one_of_several(variable, "mpirun (Open MPI)", "OMPI_COMM_WORLD_SIZE")) return found;
  if (auto found = one_of_several(variable, "mpirun (MVAPICH)", "MV2_COMM_WORLD_SIZE")) return found;
  if (auto found = slurm_step(variable)) return found;
  if (auto found = one_of_several(variable, "mpirun or another launcher (PMI)", "PMI_SIZE")) return found;
  // PMIx tells the number to who asks its server. The first of several cannot be told from one that is alone, but the
  // others can.
  if (const int rank = number_of(variable("PMIX_RANK")); rank > 0) {
    return OtherLauncher{"mpirun or another launcher (PMIx)", fmt::format("PMIX_RANK={}", rank)};
  }
  return std::nullopt;
}

std::string refusal_of(const OtherLauncher& launcher, const std::string& program) {
  const std::string many = launcher.world_size > 0 ? fmt::format("{}", launcher.world_size) : "several";
  return fmt::format(
      "{} has started this process as one of {} ({}), but only `paceline run` tells ranks how to meet, and each of "
      "them "
      "would train alone. Type instead: paceline run -n {} -- {} (over several hosts, with -n the number on each: "
      "--hosts HOST,HOST). For a world of one all the same, set WORLD_SIZE=1 or use Comm::solo()",
      launcher.name, many, launcher.evidence, launcher.world_size > 0 ? many : "N", program);
}

namespace {

std::optional<OtherLauncher> one_of_several(const Variable& variable, const char* launcher, const char* size) {
  const int world_size = number_of(variable(size));
  if (world_size <= 1) return std::nullopt;
  return OtherLauncher{launcher, fmt::format("{}={}", size, world_size), world_size};
}

/// A batch script has the number of tasks too, but is no task: only steps have a number. The shell of an allocation is
/// a step of one task, which SLURM_NTASKS, the allocation's, does not say.
std::optional<OtherLauncher> slurm_step(const Variable& variable) {
  if (!variable("SLURM_STEP_ID") && !variable("SLURM_STEPID")) return std::nullopt;
  if (!variable("SLURM_PROCID")) return std::nullopt;
  const char* const size = variable("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  return one_of_several(variable, "srun", size);
}

}  // namespace
}  // namespace paceline
