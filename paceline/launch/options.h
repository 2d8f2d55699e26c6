#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "paceline/launch/failure/watch.h"
#include "paceline/net/port_range.h"
#include "paceline/net/secret.h"
#include "paceline/net/tcp_address.h"

namespace paceline::launch {

/// Another host of a job, which this launcher starts a launcher on.
struct RemoteHost {
  std::string host;
  int workers = 0;
};

/// What a launcher of a job over several hosts was asked for.
struct NodeOptions {
  int count = 1;
  int rank = 0;
  std::string rendezvous;                ///< HOST:PORT, as it was given.
  std::vector<SocketAddress> addresses;  ///< What that stands for, or where node 0 listens.
  PortRange ports;                       ///< PACELINE_PORTS: where the store listens, as workers do.
  std::string bind;                      ///< --bind; empty: by which address this host reaches the rendezvous.
  std::optional<Secret> secret;          ///< None on loopback only.
  std::string secret_file;               ///< Where it is from; empty if from the environment or standard input.
  bool made_secret = false;              ///< The file is new, and to be removed at the end.
  bool ends_with_input = false;          ///< The job ends when standard input does.
  std::string job;                       ///< --job; empty for any.
  std::chrono::seconds join_timeout{600};
  std::string command_tail;  ///< What follows -n N on the command lines of others, as a shell takes it.
  std::vector<RemoteHost> remotes;
  std::vector<std::string> ssh;  ///< What starts a command line on a remote host, its executable in front.
  std::string remote_start;      ///< What such a command line begins with: the folder, the program, `run`.
};

/// What `paceline run` was asked for.
struct RunOptions {
  int workers = 0;
  std::vector<std::string> program;  ///< Its arguments with its name in front, as the user gave them.
  std::string executable;            ///< The file that the name stands for.
  bool tag = true;                   ///< Put "[rank R] " in front of each line.
  /// How long workers get to end by themselves; without it, kAfterSignal or kAfterFailure.
  std::optional<std::chrono::milliseconds> grace;
  WatchOptions watch;                     ///< When a worker is silent, and when the job is stuck.
  std::optional<int> timeout_s;           ///< PACELINE_TIMEOUT.
  std::optional<std::string> transport;   ///< PACELINE_TRANSPORT.
  std::optional<int> threads_per_worker;  ///< Overrides the environment when given.
  bool keep_freed_memory = true;          ///< Tune glibc's malloc, unless the environment does.
  std::optional<std::string> run_dir;     ///< PACELINE_RUN_DIR, absolute.
  std::vector<std::string> environment;   ///< KEY=VALUE
  std::optional<NodeOptions> nodes;       ///< Of a job over several hosts.

  /// Who is asked to end may have a checkpoint to save; who has seen another rank fail cannot go on.
  static constexpr std::chrono::milliseconds kAfterSignal{30'000}, kAfterFailure{2'000};
  std::chrono::milliseconds grace_after_signal() const { return grace.value_or(kAfterSignal); }
  std::chrono::milliseconds grace_after_failure() const { return grace.value_or(kAfterFailure); }
};

}  // namespace paceline::launch
