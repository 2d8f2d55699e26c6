#include "paceline/base/stack_frames.h"

#include <algorithm>

namespace paceline {

bool is_stack_frame(std::string_view line) {
  if (line.starts_with("Exception raised from ")) return line.ends_with("(most recent call first):");
  constexpr std::string_view kFrame = "frame #";
  return line.starts_with(kFrame) && line.substr(kFrame.size()).find_first_not_of("0123456789") != 0 &&
         line.find(": ") != std::string_view::npos;
}

std::string_view without_stack_frames(std::string_view text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (is_stack_frame(text.substr(begin, end - begin))) return text.substr(0, begin == 0 ? 0 : begin - 1);
    begin = end + 1;
  }
  return text;
}

}  // namespace paceline
