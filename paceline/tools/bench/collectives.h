#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "paceline/comm/operation.h"

namespace paceline::tools {

/// What a rank's operand holds: all of the row's bytes, or one of as many parts of them as there are ranks.
enum class Extent : std::uint8_t { Total, Part };

/// A collective as the bench sees it.
struct CollectiveTraits {
  Collective kind;
  const char* name;
  bool reduces;       ///< Else it moves values as they are.
  bool rooted;        ///< Has a root.
  bool parts;         ///< The bytes are cut into parts, one a rank.
  Extent in, out;     ///< Of the operands.
  bool in_on_root;    ///< Only the root has an input.
  bool out_on_root;   ///< Only the root gets an output.
  bool out_of_place;  ///< Can be called with operands apart.
  /// busbw / algbw is this times (n - 1) / n; 0 stands for a plain 1.
  int bus_shares;
};

/// Throws InvalidArgument, listing the names there are.
const CollectiveTraits& collective_named(std::string_view name);

/// All names, e.g. "all_reduce, reduce_scatter".
std::string collective_names();

/// What algbw is multiplied with so that figures of different world sizes compare with the limit of the hardware, as in
/// nccl-tests (doc/PERFORMANCE.md there).
double bus_factor(const CollectiveTraits& traits, int world_size);

/// Bytes that a size must be a multiple of.
std::size_t size_unit(const CollectiveTraits& traits, Dtype dtype, int world_size);

}  // namespace paceline::tools
