#pragma once

#include <string>

#include "paceline/observe/report.h"

namespace paceline {

enum class Colour { None, Ansi };
enum class Charset { Ascii, Utf8 };

struct SummaryOptions {
  int width = 80;                   ///< Columns; below 60 is taken as 60.
  Colour colour = Colour::None;     ///< Ansi when a terminal reads it.
  Charset charset = Charset::Utf8;  ///< Ascii where the locale is not UTF-8.
  std::string report_path{};        ///< Said at the end, when not empty.
};

/// What a user wants to know at the end of a run, as lines of at most `width` columns (a longer name or path stays in
/// one piece): how good and how fast, where the time of a step went, and the one thing to do about it. The same for a
/// report read from a file as for the one written there. Ends in a newline.
std::string terminal_summary(const Report& report, const SummaryOptions& options = {});

}  // namespace paceline
