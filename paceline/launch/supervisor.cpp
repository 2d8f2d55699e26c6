#include "paceline/launch/supervisor.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <memory>
#include <utility>

#include "paceline/base/error.h"
#include "paceline/base/exit_codes.h"
#include "paceline/launch/job.h"
#include "paceline/launch/nodes/nodes.h"

namespace paceline::launch {

int run_supervisor(const RunOptions& options, pid_t launcher, const sigset_t& mask) {
  try {
    if (::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) throw system_error("cannot become a subreaper", errno);
    std::unique_ptr<JobNodes> nodes;
    try {
      if (options.nodes) nodes = options.nodes->rank == 0 ? make_coordinator(options) : make_agent(options);
    } catch (const Error& error) {
      fmt::print(stderr, "paceline run: {}\n", error.message());
      return error.code() == ErrorCode::InvalidArgument ? kExitUsage : kExitUnavailable;
    }
    const int exit_code = Supervisor(options, std::move(nodes), launcher, mask).run();
    if (options.nodes && options.nodes->made_secret) ::unlink(options.nodes->secret_file.c_str());
    return exit_code;
  } catch (const std::exception& error) {
    // Whatever was started is ended by the launcher, which inherits it.
    fmt::print(stderr, "paceline: {}\n", error.what());
    return kExitInternal;
  }
}

}  // namespace paceline::launch
