#pragma once

#include <functional>
#include <string>
#include <vector>

#include "paceline/comm/comm.h"

namespace paceline {

/// Collective. Runs `action` on every rank, and gives all of them what each rank's returned. Where it throws on some
/// rank, all throw the same Error: the first such rank's, with its code. The communicator lives on.
std::vector<std::string> agree(const Comm& comm, const std::function<std::string()>& action);

}  // namespace paceline
