#pragma once

#include <cstdio>

namespace paceline {

/// Lets each line that is written to `stream`, a program's standard output, leave the process at its end, so that what
/// a killed worker has printed is not lost with its buffer. Only for a pipe, which C libraries buffer in blocks, and
/// only where the program has neither chosen a buffer nor written anything.
void keep_no_lines(std::FILE* stream);

}  // namespace paceline
