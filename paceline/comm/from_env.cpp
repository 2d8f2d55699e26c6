#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "paceline/comm/comm_state.h"
#include "paceline/comm/engine_choice.h"
#include "paceline/comm/other_launcher.h"
#include "paceline/comm/shm/engine.h"
#include "paceline/comm/standard_output.h"
#include "paceline/comm/tcp/engine.h"

namespace paceline {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

int whole_number(const char* name, int least) {
  const auto text = variable(name);
  int value = 0;
  const char* end = text ? text->data() + text->size() : nullptr;
  const auto read = text ? std::from_chars(text->data(), end, value) : std::from_chars_result{};
  if (!text || read.ec != std::errc() || read.ptr != end || value < least) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}={} is not a whole number of at least {}; start the program with 'paceline run'", name,
                            text.value_or("(not set)"), least));
  }
  return value;
}

std::string one_of(const char* name, std::initializer_list<std::string_view> choices) {
  std::string value = variable(name).value_or(std::string(*choices.begin()));
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return value;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{}={} must be one of: {}", name, value, fmt::join(choices, ", ")));
}

std::optional<Secret> secret() {
  if (const auto path = variable("PACELINE_SECRET_FILE")) return Secret::from_file(*path);
  if (const auto digits = variable("PACELINE_SECRET")) return Secret::from_hex(*digits);
  return std::nullopt;
}

TcpOptions tcp_options() {
  TcpOptions tcp;
  tcp.bind = variable("PACELINE_BIND").value_or("");
  if (const auto ports = variable("PACELINE_PORTS")) tcp.ports = PortRange::from_text(*ports);
  tcp.secret = secret();
  const std::string all_reduce = one_of("PACELINE_ALL_REDUCE", {"auto", "direct", "ring"});
  if (all_reduce == "direct") tcp.all_reduce = Algorithm::Direct;
  if (all_reduce == "ring") tcp.all_reduce = Algorithm::Ring;
  return tcp;
}

std::shared_ptr<Comm::State> new_state(const std::shared_ptr<Store>& store, const std::string& name, int rank,
                                       int world_size, Comm::State::MakeEngine make_engine) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("there is no rank {} in a world of {}", rank, world_size));
  }
  auto state = std::make_shared<Comm::State>();
  state->name = name;
  state->rank = state->job_rank = rank;
  state->world_size = world_size;
  state->store = store;
  state->make_engine = std::move(make_engine);
  return state;
}

Comm join(std::shared_ptr<Comm::State> state) {
  if (state->world_size > 1) state->join();
  return Comm(std::move(state));
}

Comm::State::MakeEngine shared_memory(const std::shared_ptr<Store>& store, const CommOptions& options) {
  return [store, options](const std::string& name, int rank, int world_size) {
    auto group = connect_shm_group(*store, name, rank, world_size, Deadline(options.timeout));
    return std::make_unique<ShmEngine>(std::move(group), name, options.timeout, options.job_status);
  };
}

Comm::State::MakeEngine over_connections(const std::shared_ptr<Store>& store, const TcpOptions& tcp,
                                         const CommOptions& options) {
  return [store, tcp, options](const std::string& name, int rank, int world_size) {
    return make_tcp_engine(store, name, rank, world_size, tcp, options.timeout, options.job_status);
  };
}

Comm::State::MakeEngine between_hosts(const std::shared_ptr<Store>& store, const TcpOptions& tcp,
                                      const CommOptions& options) {
  return [store, tcp, options](const std::string& name, int rank, int world_size) {
    return make_engine_for_topology(store, name, rank, world_size, tcp, options);
  };
}

/// Of this process, to type again: its words, where a shell takes them as they are, else the program's name.
std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string words{std::istreambuf_iterator<char>(file), {}};
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
  std::string line;
  for (std::size_t at = 0; at < words.size();) {
    const std::string word = words.substr(at, words.find('\0', at) - at);
    at += word.size() + 1;
    const bool plain = !word.empty() && word.find_first_not_of(kPlain) == std::string::npos;
    if (!plain || line.size() + word.size() > 200) return fmt::format("{} ...", program_invocation_name);
    line += (line.empty() ? "" : " ") + word;
  }
  return line.empty() ? program_invocation_name : line;
}

/// What writes this worker's page of the job status; null where no launcher has made one. A process has one, however
/// often it joins.
std::shared_ptr<StatusWriter> open_job_status() {
  static std::mutex mutex;
  static std::weak_ptr<StatusWriter> opened;
  const auto address = variable(JobStatus::kVariable);
  if (!address) return nullptr;
  const int slot = whole_number("LOCAL_RANK", 0);
  const std::lock_guard lock(mutex);
  auto writer = opened.lock();
  if (writer && writer->origin().here()) return writer;
  writer = std::make_shared<StatusWriter>(std::make_shared<JobStatus>(*address, slot), slot);
  opened = writer;
  return writer;
}

/// The name of the communicator that this call of from_env() joins: each rank's first call meets the others' first, its
/// second their second. A later program of the same worker counts on. Throws InvalidArgument where another process, of
/// which this may be a child, has joined as this rank and is still there.
std::string name_of_join(Store& store, int rank) {
  const std::string key = fmt::format("process/{}", rank);
  pid_t joined = 0;
  if (store.add(fmt::format("joins/{}", rank), 0) > 0) {
    const std::string text = store.get(key, Deadline(std::chrono::seconds(10)));
    std::from_chars(text.data(), text.data() + text.size(), joined);
  }
  if (joined > 0 && joined != ::getpid() && (::kill(joined, 0) == 0 || errno == EPERM)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("process {} has joined this job as rank {}, so process {} cannot: a rank is one process. A "
                            "child that works by itself must be started without the variable WORLD_SIZE",
                            joined, rank, ::getpid()),
                rank);
  }
  store.set(key, std::to_string(::getpid()));
  const std::int64_t number = store.add(fmt::format("joins/{}", rank), 1);
  return number == 1 ? "world" : fmt::format("world#{}", number);
}

}  // namespace

Comm Comm::solo() { return Comm(std::make_shared<State>()); }

Comm Comm::over_shared_memory(const std::shared_ptr<Store>& store, const std::string& name, int rank, int world_size,
                              const CommOptions& options) {
  return join(new_state(store, name, rank, world_size, shared_memory(store, options)));
}

Comm Comm::over_tcp(const std::shared_ptr<Store>& store, const std::string& name, int rank, int world_size,
                    const TcpOptions& tcp, const CommOptions& options) {
  return join(new_state(store, name, rank, world_size, over_connections(store, tcp, options)));
}

Comm Comm::over_hosts(const std::shared_ptr<Store>& store, const std::string& name, int rank, int world_size,
                      const TcpOptions& tcp, const CommOptions& options) {
  return join(new_state(store, name, rank, world_size, between_hosts(store, tcp, options)));
}

Comm Comm::from_env() {
  if (!variable("PACELINE_STORE") && variable("WORLD_SIZE").value_or("") != "1") {
    if (const auto other = find_other_launcher(variable)) {
      throw Error(ErrorCode::InvalidArgument, refusal_of(*other, command_line()));
    }
  }
  if (!variable("WORLD_SIZE")) return solo();
  const int world_size = whole_number("WORLD_SIZE", 1);
  if (world_size == 1 && !variable("PACELINE_STORE")) return solo();
  const int rank = whole_number("RANK", 0);
  const auto address = variable("PACELINE_STORE");
  if (!address) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("WORLD_SIZE is {}, but PACELINE_STORE is not set: start the program with 'paceline run -n {} "
                    "-- PROGRAM', or unset WORLD_SIZE to run one worker",
                    world_size, world_size));
  }
  CommOptions options;
  if (variable("PACELINE_TIMEOUT")) options.timeout = std::chrono::seconds(whole_number("PACELINE_TIMEOUT", 1));
  auto store =
      connect_store(*address, Deadline(options.timeout), address->starts_with("tcp:") ? secret() : std::nullopt);
  keep_no_lines(stdout);
  auto job_status = open_job_status();
  if (job_status) options.job_status = job_status->job_status();
  const std::string transport = one_of("PACELINE_TRANSPORT", {"auto", "shm", "tcp"});
  const std::string name = world_size > 1 ? name_of_join(*store, rank) : "world";
  auto state = new_state(store, name, rank, world_size,
                         transport == "auto"  ? between_hosts(store, tcp_options(), options)
                         : transport == "tcp" ? over_connections(store, tcp_options(), options)
                                              : shared_memory(store, options));
  state->job_status = std::move(job_status);
  Comm comm = join(state);
  // The launcher tells workers that end before they joined.
  state->guarded([&] { store->set(fmt::format("joined/{}", rank), "1"); });
  return comm;
}

}  // namespace paceline
