#pragma once

#include <fmt/format.h>

#include <type_traits>

#include "paceline/base/error.h"

namespace paceline {

/// Throws InvalidArgument unless `value` is one of the enumerators, which are numbered from 0 to `last`: a cast, or
/// memory that was never set, may hold anything else. `what` names the option or argument.
template <class Enum>
void require_enumerator(const char* what, Enum value, Enum last) {
  const auto number = static_cast<long long>(static_cast<std::underlying_type_t<Enum>>(value));
  if (number >= 0 && number <= static_cast<long long>(last)) return;
  throw Error(ErrorCode::InvalidArgument, fmt::format("{} is {}, which is none of its values", what, number));
}

}  // namespace paceline
