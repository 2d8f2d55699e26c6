#pragma once

#include <string_view>

namespace paceline {

/// Whether the line is of the trace of C++ frames that libtorch puts behind the text of its exceptions.
bool is_stack_frame(std::string_view line);

/// What stands before that trace; all of a text that has none.
std::string_view without_stack_frames(std::string_view text);

}  // namespace paceline
