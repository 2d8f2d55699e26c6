#pragma once

#include <filesystem>

namespace paceline {

/// Makes this process the only one that saves to `folder`, until it ends; again in the same process is no error. Throws
/// InvalidArgument, naming the process where it is on this machine, if another one is. Where the file system has no
/// locks nothing is known of others.
///
/// The lock is of the file `.paceline-lock` there, which stays. A process that is forked off does not hold it.
void own_folder(const std::filesystem::path& folder);

}  // namespace paceline
