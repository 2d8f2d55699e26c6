#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>

#include "paceline/comm/comm_state.h"
#include "paceline/comm/shm_engine.h"

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
  if (!text || std::from_chars(text->data(), end, value).ptr != end || value < least) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}={} is not a whole number of at least {}; start the program with 'paceline run'", name,
                            text.value_or("(not set)"), least));
  }
  return value;
}

}  // namespace

Comm Comm::solo() { return Comm(std::make_shared<State>()); }

Comm Comm::over_shared_memory(const std::shared_ptr<Store>& store, const std::string& name, int rank, int world_size,
                              CommOptions options) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("there is no rank {} in a world of {}", rank, world_size));
  }
  auto state = std::make_shared<Comm::State>();
  state->name = name;
  state->rank = state->job_rank = rank;
  state->world_size = world_size;
  state->store = store;
  state->make_engine = [store, options](const std::string& group_name, int group_rank, int group_size) {
    auto group = connect_shm_group(*store, group_name, group_rank, group_size, Deadline(options.timeout));
    return std::make_unique<ShmEngine>(std::move(group), group_name, options.timeout);
  };
  if (world_size > 1) {
    state->engine = state->guarded([&] { return state->make_engine(name, rank, world_size); });
  }
  return Comm(std::move(state));
}

Comm Comm::from_env() {
  if (!variable("WORLD_SIZE")) return solo();
  const int world_size = whole_number("WORLD_SIZE", 1);
  const int rank = whole_number("RANK", 0);
  const auto address = variable("PACELINE_STORE");
  if (!address) {
    if (world_size == 1) return solo();
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("WORLD_SIZE is {}, but PACELINE_STORE is not set: start the program with 'paceline run -n {} "
                    "-- PROGRAM', or unset WORLD_SIZE to run one worker",
                    world_size, world_size));
  }
  CommOptions options;
  if (variable("PACELINE_TIMEOUT")) options.timeout = std::chrono::seconds(whole_number("PACELINE_TIMEOUT", 1));
  auto store = connect_store(*address, Deadline(options.timeout));
  Comm comm = over_shared_memory(store, "world", rank, world_size, options);
  store->set(fmt::format("joined/{}", rank), "1");  // the launcher tells workers that end before they joined
  return comm;
}

}  // namespace paceline
