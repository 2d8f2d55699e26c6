#include "paceline/launch/nodes/node_arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "paceline/base/error.h"
#include "paceline/base/unique_fd.h"
#include "paceline/launch/nodes/job_secret.h"
#include "paceline/launch/option_numbers.h"
#include "paceline/launch/shell.h"
#include "paceline/net/host_port.h"

namespace paceline::launch {
namespace {

constexpr int kMaxNodes = 1024, kMaxWorkersPerHost = 1024;

NodeOptions from_ranks(const NodeArguments& arguments);
NodeOptions from_hosts(const NodeArguments& arguments, RunOptions& options);
std::vector<SocketAddress> where_to_listen(const NodeArguments& arguments, const HostPort& at);
std::vector<RemoteHost> split_hosts(const std::string& list, int workers);
std::string rendezvous_for(const NodeArguments& arguments, const std::vector<RemoteHost>& hosts);
bool is_this_host(const std::string& host);
PortRange ports_of_workers(const RunOptions& options);
std::vector<std::string> common_arguments(const RunOptions& options, const NodeArguments& arguments);

}  // namespace

void add_node_options(CLI::App& command, NodeArguments& arguments) {
  const std::string group = "Several hosts";
  command.add_option("--nnodes", arguments.count, "How many hosts (nodes); start `paceline run` on each of them")
      ->type_name("M")
      ->group(group);
  command.add_option("--node-rank", arguments.rank, "Which of them this is, from 0")->type_name("R")->group(group);
  command
      .add_option(
          "--rendezvous", arguments.rendezvous,
          "Where node 0 listens and the others look for it, the same on all; port 0: any that is free, and node "
          "0 says which")
      ->type_name("HOST:PORT")
      ->group(group);
  command
      .add_option("--secret-file", arguments.secret_file,
                  "64 hexadecimal digits that all hosts have, for its owner only (chmod 600). Node 0 makes one where "
                  "there is none; \"-\" is standard input, with which the job then ends")
      ->type_name("FILE")
      ->group(group);
  command
      .add_option("--bind", arguments.bind,
                  "Where this host's workers listen, and on node 0 the launcher: an address, or interfaces as in "
                  "PACELINE_BIND (by which address the rendezvous is reached)")
      ->type_name("ADDR|IFACE")
      ->group(group);
  command.add_option("--join-timeout", arguments.join_timeout, "How long to wait for all hosts (600)")
      ->type_name("SECONDS")
      ->group(group);
  command.add_option("--job", arguments.job, "The job's name; launchers of another one are sent away")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--hosts", arguments.hosts,
                  "Start all of the job from here: this host first, then others, each with its number of workers if "
                  "that is not -n; they are reached by ssh")
      ->type_name("HOST[:N],...")
      ->group(group);
  command.add_option("--ssh", arguments.ssh, "What takes ssh's place: called with a host and a command line (ssh)")
      ->type_name("COMMAND")
      ->group(group);
}

std::optional<NodeOptions> node_options(const NodeArguments& arguments, RunOptions& options) {
  const bool by_hosts = !arguments.hosts.empty();
  const bool by_ranks = !arguments.count.empty() || !arguments.rank.empty();
  if (by_hosts && by_ranks) throw CLI::ValidationError("--hosts says how many nodes there are: leave --nnodes out");
  if (!by_hosts && !by_ranks) {
    for (const auto& [name, value] : {std::pair{"--rendezvous", arguments.rendezvous},
                                      {"--bind", arguments.bind},
                                      {"--secret-file", arguments.secret_file}}) {
      if (!value.empty()) throw CLI::ValidationError(name, "is for several hosts: give --nnodes or --hosts too");
    }
    return std::nullopt;
  }
  NodeOptions nodes = by_hosts ? from_hosts(arguments, options) : from_ranks(arguments);
  if (nodes.count == 1) return std::nullopt;
  const char* const wanted = std::getenv("PACELINE_TRANSPORT");
  if (options.transport.value_or(wanted == nullptr ? "" : wanted) == "shm") {
    throw CLI::ValidationError("--transport", "shm ends at the host: a job over several hosts needs auto or tcp");
  }
  nodes.bind = arguments.bind;
  nodes.job = arguments.job;
  nodes.ports = ports_of_workers(options);
  nodes.join_timeout = std::chrono::seconds(whole_number("--join-timeout", arguments.join_timeout, 1, 1'000'000));
  if (by_hosts && arguments.secret_file.empty()) nodes.secret = Secret::random();
  else find_secret(arguments.secret_file, nodes);

  std::vector<std::string> words = common_arguments(options, arguments);
  if (by_hosts || nodes.secret_file.empty()) {
    if (by_hosts) words.insert(words.end(), {"--secret-file", "-"});
  } else {
    words.insert(words.end(), {"--secret-file", nodes.secret_file});
  }
  words.emplace_back("--");
  words.insert(words.end(), options.program.begin(), options.program.end());
  nodes.command_tail = shell_line(words);
  return nodes;
}

namespace {

NodeOptions from_ranks(const NodeArguments& arguments) {
  NodeOptions nodes;
  if (arguments.count.empty()) throw CLI::ValidationError("--node-rank", "needs --nnodes");
  nodes.count = whole_number("--nnodes", arguments.count, 1, kMaxNodes);
  if (arguments.rank.empty() && nodes.count > 1) throw CLI::ValidationError("--nnodes", "needs --node-rank");
  if (!arguments.rank.empty()) nodes.rank = whole_number("--node-rank", arguments.rank, 0, nodes.count - 1);
  if (nodes.count == 1) return nodes;
  if (arguments.rendezvous.empty()) throw CLI::ValidationError("--nnodes", "needs --rendezvous HOST:PORT");
  nodes.rendezvous = arguments.rendezvous;
  const HostPort at = parse_host_port(arguments.rendezvous);
  if (nodes.rank != 0 && at.port == 0) {
    throw CLI::ValidationError("--rendezvous", "needs the port at which node 0 listens; node 0 says which that is");
  }
  nodes.addresses = nodes.rank == 0 ? where_to_listen(arguments, at) : resolve(at.host, at.port);
  return nodes;
}

std::vector<SocketAddress> where_to_listen(const NodeArguments& arguments, const HostPort& at) {
  std::vector<SocketAddress> addresses;
  const bool bound = !arguments.bind.empty();
  for (const SocketAddress& address : bound ? addresses_to_bind(arguments.bind) : resolve(at.host, at.port)) {
    if (address.host() == "0.0.0.0" || address.host() == "::") {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("{} is every address of this host, and none that others could reach: name one, or an "
                              "interface with --bind",
                              address.host()));
    }
    addresses.push_back(address.with_port(at.port));
  }
  if (bound || is_numeric_address(at.host) || at.host == "localhost") return addresses;
  // Many hosts find their own name in /etc/hosts as 127.0.1.1.
  const std::string first = addresses.front().host();
  std::erase_if(addresses, [](const SocketAddress& address) { return address.is_loopback(); });
  if (addresses.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("\"{}\" is {} on this host (see /etc/hosts), where no other host can reach it: give an "
                            "address or interface with --bind",
                            at.host, first));
  }
  return addresses;
}

NodeOptions from_hosts(const NodeArguments& arguments, RunOptions& options) {
  NodeOptions nodes;
  nodes.remotes = split_hosts(arguments.hosts, options.workers);
  const RemoteHost own = nodes.remotes.front();
  if (!is_this_host(own.host)) {
    throw CLI::ValidationError("--hosts",
                               fmt::format("begins with the host it is started on, but \"{}\" is another one "
                                           "(\"localhost\" is always this one)",
                                           own.host));
  }
  options.workers = own.workers;
  nodes.count = static_cast<int>(nodes.remotes.size());
  if (nodes.count == 1) return nodes;
  nodes.rendezvous = rendezvous_for(arguments, nodes.remotes);
  nodes.addresses = where_to_listen(arguments, parse_host_port(nodes.rendezvous));
  nodes.remotes.erase(nodes.remotes.begin());

  std::istringstream words(arguments.ssh);
  for (std::string word; words >> word;) nodes.ssh.push_back(word);
  if (nodes.ssh.empty()) throw CLI::ValidationError("--ssh", "needs a command");
  nodes.remote_start = fmt::format("cd {} && exec {} run", shell_quote(std::filesystem::current_path().string()),
                                   shell_quote(std::filesystem::read_symlink("/proc/self/exe").string()));
  return nodes;
}

std::vector<RemoteHost> split_hosts(const std::string& list, int workers) {
  std::vector<RemoteHost> hosts;
  std::istringstream entries(list);
  for (std::string entry; std::getline(entries, entry, ',');) {
    RemoteHost host{.host = entry, .workers = workers};
    const std::size_t colon = entry.rfind(':');
    // fd00::1 has no number of workers; [fd00::1]:2 has.
    const bool numbered = colon != std::string::npos && (entry.find(':') == colon || entry[colon - 1] == ']');
    if (numbered) {
      host.host = entry.substr(0, colon);
      host.workers = whole_number("--hosts", entry.substr(colon + 1), 1, kMaxWorkersPerHost);
    }
    if (host.host.starts_with('[') && host.host.ends_with(']')) host.host = host.host.substr(1, host.host.size() - 2);
    // What begins with a dash would be an option of ssh.
    if (host.host.empty() || host.host.starts_with('-')) {
      throw CLI::ValidationError("--hosts", fmt::format("\"{}\" is no host, in \"{}\"", entry, list));
    }
    hosts.push_back(host);
  }
  if (hosts.empty()) throw CLI::ValidationError("--hosts", "names no host");
  return hosts;
}

// An address at which the others reach this host.
std::string rendezvous_for(const NodeArguments& arguments, const std::vector<RemoteHost>& hosts) {
  if (!arguments.rendezvous.empty()) return arguments.rendezvous;
  if (!arguments.bind.empty()) return addresses_to_bind(arguments.bind).front().with_port(0).text();
  if (hosts.front().host != "localhost") {
    for (const SocketAddress& address : resolve(hosts.front().host, 0)) {
      if (!address.is_loopback()) return address.text();
    }
  }
  return address_towards(hosts[1].host).with_port(0).text();
}

bool is_this_host(const std::string& host) {
  std::array<char, 256> name{};
  if (host == "localhost" || (::gethostname(name.data(), name.size() - 1) == 0 && host == name.data())) return true;
  const auto addresses = resolve(host, 0);
  return std::any_of(addresses.begin(), addresses.end(), [](const SocketAddress& address) {
    const UniqueFd socket(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    return socket && ::bind(socket.get(), address.get(), address.length()) == 0;
  });
}

// What the workers will find as PACELINE_PORTS.
PortRange ports_of_workers(const RunOptions& options) {
  const std::string name = "PACELINE_PORTS=";
  std::string value = std::getenv("PACELINE_PORTS") == nullptr ? "" : std::getenv("PACELINE_PORTS");
  for (const std::string& assignment : options.environment) {
    if (assignment.starts_with(name)) value = assignment.substr(name.size());
  }
  return value.empty() ? PortRange{} : PortRange::from_text(value);
}

// What all hosts' launchers should be given alike.
std::vector<std::string> common_arguments(const RunOptions& options, const NodeArguments& arguments) {
  std::vector<std::string> words;
  const auto option = [&](const char* name, const std::string& value) {
    words.emplace_back(name);
    words.push_back(value);
  };
  if (options.threads_per_worker) option("--threads-per-worker", std::to_string(*options.threads_per_worker));
  if (options.transport) option("--transport", *options.transport);
  if (options.run_dir) option("--run-dir", *options.run_dir);
  if (options.timeout_s) option("--timeout", std::to_string(*options.timeout_s));
  const auto in_seconds = [](Nanoseconds time) { return fmt::format("{}", seconds(time)); };
  if (options.grace) option("--grace", in_seconds(*options.grace));
  if (options.watch.silence != WatchOptions().silence) option("--silence", in_seconds(options.watch.silence));
  if (options.watch.stuck != WatchOptions().stuck) option("--stuck", in_seconds(options.watch.stuck));
  if (!options.tag) words.emplace_back("--no-tag");
  if (!options.keep_freed_memory) words.emplace_back("--return-memory");
  if (!arguments.job.empty()) option("--job", arguments.job);
  if (arguments.join_timeout != NodeArguments().join_timeout) option("--join-timeout", arguments.join_timeout);
  // An interface may be called the same everywhere; an address is one host's.
  if (!arguments.bind.empty() && !is_numeric_address(arguments.bind)) option("--bind", arguments.bind);
  if (!arguments.hosts.empty()) {
    // What this launcher's own workers find in the environment.
    for (const char* name : {"PACELINE_TRANSPORT", "PACELINE_TIMEOUT", "PACELINE_PORTS", "PACELINE_ALL_REDUCE"}) {
      if (const char* value = std::getenv(name)) option("--env", fmt::format("{}={}", name, value));
    }
  }
  for (const std::string& assignment : options.environment) option("--env", assignment);
  return words;
}

}  // namespace
}  // namespace paceline::launch
