#pragma once

#include <functional>
#include <optional>
#include <string>

namespace paceline {

/// A launcher that is not ours and says that it has started this process as one of several.
struct OtherLauncher {
  std::string name;      ///< "mpirun (Open MPI)"
  std::string evidence;  ///< "OMPI_COMM_WORLD_SIZE=4"
  int world_size = 0;    ///< 0 where it does not say how many.
};

/// What `variable` gives for names of the environment says so; nothing if no launcher is known from it, or if it has
/// started this process alone.
std::optional<OtherLauncher> find_other_launcher(
    const std::function<std::optional<std::string>(const char*)>& variable);

/// Why such a process makes no world of one, and what to type instead. `program` is its command line.
std::string refusal_of(const OtherLauncher& launcher, const std::string& program);

}  // namespace paceline
