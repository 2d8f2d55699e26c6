#pragma once

#include <string>

#include "paceline/launch/options.h"
#include "paceline/net/secret.h"

namespace paceline::launch {

/// Finds the job's secret for `nodes`: in `file` ("-": the first line of standard input, with which the job then ends
/// unless that is a terminal),
/// or where the environment says (PACELINE_SECRET_FILE, PACELINE_SECRET); on node 0 a new one in a new file, if
/// somebody outside of this host could reach it otherwise. Throws InvalidArgument.
void find_secret(const std::string& file, NodeOptions& nodes);

}  // namespace paceline::launch
