#include "paceline/launch/nodes/remote_launchers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "paceline/base/error.h"
#include "paceline/base/exit_codes.h"
#include "paceline/launch/shell.h"

namespace paceline::launch {
namespace {

std::vector<std::string> own_environment();

}  // namespace

void RemoteLaunchers::start(const NodeOptions& options, const std::string& rendezvous, const sigset_t& mask,
                            JobOutput& output) {
  WorkerProgram like{.executable = {}, .arguments = {}, .environment = {}};
  like.signal_mask = mask;
  if (::getrlimit(RLIMIT_NOFILE, &like.open_files) != 0)
    throw system_error("cannot read the limit of open files", errno);
  like.environment = own_environment();
  int node = 0;
  for (const RemoteHost& remote : options.remotes) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error("cannot create a pipe for " + remote.host, errno);
    const UniqueFd read(ends[0]);
    UniqueFd write(ends[1]);
    const std::string secret = options.secret->hex() + "\n";
    if (::write(write.get(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size())) {
      throw system_error("cannot write to a pipe", errno);
    }
    like.executable = options.ssh.front();
    like.arguments = options.ssh;
    like.arguments.push_back(remote.host);
    // A shell on the other side takes all words apart again, so they are one word here.
    like.arguments.push_back(fmt::format("{} --nnodes {} --node-rank {} --rendezvous {} -n {} {}", options.remote_start,
                                         options.count, ++node, shell_quote(rendezvous), remote.workers,
                                         options.command_tail));
    like.input = read.get();
    StartedWorker started = start_worker(like);
    if (started.start_error != 0) {
      failure_ = JobOutcome{.text = fmt::format("cannot start {} for the host {}: {}", options.ssh.front(), remote.host,
                                                std::generic_category().message(started.start_error)),
                            .exit_code = kExitUnavailable,
                            .fault = Fault::HostLost};
    }
    output.add_launcher(std::move(started.out), std::move(started.err));
    started_.push_back({remote.host, options.ssh.front(), started.pid, std::move(write)});
  }
}

bool RemoteLaunchers::any_alive() const {
  return std::any_of(started_.begin(), started_.end(), [](const Started& other) { return other.alive; });
}

void RemoteLaunchers::ended(pid_t pid, int status) {
  for (Started& other : started_) {
    if (other.pid != pid || !other.alive) continue;
    other.alive = false;
    if (failure_) continue;
    failure_ = JobOutcome{.text = fmt::format("{} for the host {} {} before its node joined", other.command, other.host,
                                              describe_status(status)),
                          .exit_code = status == 0 ? kExitUnavailable : exit_code_of(status),
                          .fault = Fault::HostLost};
  }
}

namespace {

std::vector<std::string> own_environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    // Its own way for the secret is the standard input.
    if (!std::string_view(*variable).starts_with("PACELINE_SECRET=")) variables.emplace_back(*variable);
  }
  return variables;
}

}  // namespace
}  // namespace paceline::launch
