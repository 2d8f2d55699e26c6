#include "paceline/launch/nodes/join_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

#include "paceline/base/hash.h"
#include "paceline/base/random_bytes.h"
#include "paceline/launch/nodes/heartbeat_message.h"
#include "paceline/launch/resources.h"
#include "paceline/net/tcp_address.h"

namespace paceline::launch {
namespace {

std::string hash_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string block(std::size_t{1} << 20, '\0');
  std::uint64_t hash = 0;
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    hash = hash_of(std::string_view(block).substr(0, static_cast<std::size_t>(file.gcount())), hash);
  }
  return fmt::format("{:016x}", hash);
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

/// Launchers on one kernel may still be in different network namespaces, and then loopback does not join them.
std::string this_machine() {
  std::array<char, 64> network{};
  const ssize_t length = ::readlink("/proc/self/ns/net", network.data(), network.size() - 1);
  return first_line("/proc/sys/kernel/random/boot_id") + (length > 0 ? network.data() : "");
}

}  // namespace

std::string JoinRequest::who(const std::string& address) const {
  return fmt::format("node {} (host {} at {})", node, host, address);
}

JoinRequest make_join_request(const RunOptions& options) {
  return {.version = PACELINE_VERSION,
          .build = hash_of_file("/proc/self/exe"),
          .node = options.nodes->rank,
          .nodes = options.nodes->count,
          .workers = options.workers,
          .host = host_name(),
          .machine = this_machine(),
          .job = options.nodes->job,
          .program = fmt::format("{}", fmt::join(options.program, " ")).substr(0, 4096),
          .program_hash = hash_of_file(options.executable),
          .bind = options.nodes->bind,
          .token = random_digits(1)};
}

nlohmann::json to_json(const JoinRequest& join_request) {
  return {{"kind", "join_request"},
          {"version", join_request.version},
          {"build", join_request.build},
          {"node", join_request.node},
          {"nodes", join_request.nodes},
          {"workers", join_request.workers},
          {"host", join_request.host},
          {"machine", join_request.machine},
          {"job", join_request.job},
          {"program", join_request.program},
          {"program_hash", join_request.program_hash},
          {"bind", join_request.bind},
          {"token", join_request.token}};
}

JoinRequest join_request_from(const nlohmann::json& message) {
  return {.version = message.at("version").get<std::string>(),
          .build = message.at("build").get<std::string>(),
          .node = int_at(message, "node"),
          .nodes = int_at(message, "nodes"),
          .workers = int_at(message, "workers"),
          .host = message.at("host").get<std::string>(),
          .machine = message.at("machine").get<std::string>(),
          .job = message.at("job").get<std::string>(),
          .program = message.at("program").get<std::string>(),
          .program_hash = message.at("program_hash").get<std::string>(),
          .bind = message.at("bind").get<std::string>(),
          .token = message.at("token").get<std::string>()};
}

std::string incompatibility(const JoinRequest& zero, const JoinRequest& other, const std::string& address) {
  const std::string who = other.who(address);
  if (other.version != zero.version) {
    return fmt::format("{} runs paceline {}, but node 0 runs {}; install the same on all hosts", who, other.version,
                       zero.version);
  }
  if (!zero.job.empty() && !other.job.empty() && other.job != zero.job) {
    return fmt::format(
        "two jobs meet at this rendezvous: node 0 runs job \"{}\", but {} belongs to job \"{}\"; give "
        "each job a port of its own",
        zero.job, who, other.job);
  }
  if (other.nodes != zero.nodes) {
    return fmt::format("{} was started with --nnodes {}, but node 0 with --nnodes {}", who, other.nodes, zero.nodes);
  }
  if (other.node <= 0 || other.node >= zero.nodes) {
    return fmt::format("{} cannot be one of {} nodes", who, zero.nodes);
  }
  if (other.workers < 1) return fmt::format("{} has no workers", who);
  if (other.machine != zero.machine && is_numeric_address(other.bind) && SocketAddress(other.bind, 0).is_loopback()) {
    return fmt::format(
        "{} reached the rendezvous through loopback, and its workers would listen at {}, where no other "
        "host can reach them; start it with --bind and an address or interface that can be reached",
        who, other.bind);
  }
  return "";
}

std::string oddity(const JoinRequest& zero, const JoinRequest& other, const std::string& address) {
  const std::string who = other.who(address);
  if (other.program != zero.program) {
    return fmt::format("warning: {} starts another program than node 0: \"{}\" there, \"{}\" here", who, other.program,
                       zero.program);
  }
  if (other.program_hash != zero.program_hash) {
    return fmt::format("warning: {} starts another build of \"{}\" than node 0: the files differ", who, zero.program);
  }
  if (other.build != zero.build) {
    return fmt::format("warning: {} runs another build of paceline {} than node 0", who, zero.version);
  }
  return "";
}

}  // namespace paceline::launch
