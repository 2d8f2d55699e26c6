#include "paceline/tools/bench/collectives.h"

#include <fmt/format.h>

#include <array>

#include "paceline/base/error.h"

namespace paceline::tools {
namespace {

using enum Extent;

// clang-format off
//                           kind                       name              red.   root   parts  in     out    i@root o@root apart  bus
constexpr std::array kCollectives{
    CollectiveTraits{Collective::AllReduce,     "all_reduce",     true,  false, false, Total, Total, false, false, true,  2},
    CollectiveTraits{Collective::ReduceScatter, "reduce_scatter", true,  false, true,  Total, Part,  false, false, true,  1},
    CollectiveTraits{Collective::AllGather,     "all_gather",     false, false, true,  Part,  Total, false, false, true,  1},
    CollectiveTraits{Collective::Reduce,        "reduce",         true,  true,  false, Total, Total, false, true,  true,  0},
    CollectiveTraits{Collective::Broadcast,     "broadcast",      false, true,  false, Total, Total, true,  false, false, 0},
    CollectiveTraits{Collective::Gather,        "gather",         false, true,  true,  Part,  Total, false, true,  true,  1},
    CollectiveTraits{Collective::Scatter,       "scatter",        false, true,  true,  Total, Part,  true,  false, true,  1},
    CollectiveTraits{Collective::AllToAll,      "all_to_all",     false, false, true,  Total, Total, false, false, true,  1},
    CollectiveTraits{Collective::Barrier,       "barrier",        false, false, false, Total, Total, false, false, false, 0},
};
// clang-format on

}  // namespace

const CollectiveTraits& collective_named(std::string_view name) {
  for (const CollectiveTraits& traits : kCollectives) {
    if (traits.name == name) return traits;
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("there is no collective \"{}\"; take one of {}", name, collective_names()));
}

std::string collective_names() {
  std::string names;
  for (const CollectiveTraits& traits : kCollectives) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", traits.name);
  }
  return names;
}

double bus_factor(const CollectiveTraits& traits, int world_size) {
  if (traits.bus_shares == 0) return 1;
  return static_cast<double>(traits.bus_shares) * (world_size - 1) / world_size;
}

std::size_t size_unit(const CollectiveTraits& traits, Dtype dtype, int world_size) {
  return size_of(dtype) * static_cast<std::size_t>(traits.parts ? world_size : 1);
}

}  // namespace paceline::tools
