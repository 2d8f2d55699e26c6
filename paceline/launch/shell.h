#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace paceline::launch {

/// One word as a POSIX shell reads it back.
std::string shell_quote(std::string_view word);
/// A command line that a POSIX shell takes apart into these words.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace paceline::launch
