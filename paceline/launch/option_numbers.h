#pragma once

#include <string>

namespace paceline::launch {

/// The number that an option was given. Throws CLI::ValidationError, naming the option, for anything that is no whole
/// number from `from` to `to`.
int whole_number(const std::string& option, const std::string& text, int from, int to);

}  // namespace paceline::launch
