#pragma once

#include <optional>
#include <string>
#include <vector>

#include "paceline/launch/options.h"

namespace CLI {
class App;
}

namespace paceline::launch {

/// The options of a job over several hosts, before they were checked.
struct NodeArguments {
  std::string count, rank, rendezvous, secret_file, bind, job, join_timeout = "600", hosts, ssh = "ssh";
};

void add_node_options(CLI::App& command, NodeArguments& arguments);

/// What they ask for, beside `options`, whose other fields are filled in; nothing if the job is one host's. May set
/// options.workers. Throws CLI::ValidationError for bad use, and Error for hosts, secrets and addresses that are not
/// there.
std::optional<NodeOptions> node_options(const NodeArguments& arguments, RunOptions& options);

}  // namespace paceline::launch
