#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "paceline/base/dtype.h"

namespace paceline {

/// The first element of `data` that is NaN or infinite; none for types without such values. `data` holds whole
/// elements, aligned to their type.
std::optional<std::size_t> first_not_finite(Dtype dtype, std::span<const std::byte> data);

}  // namespace paceline
