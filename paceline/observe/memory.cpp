#include "paceline/observe/memory.h"

#include <fstream>
#include <string>

namespace paceline {

std::optional<std::uint64_t> peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    std::uint64_t kibibytes = 0;
    if (word == "VmHWM:" && status >> kibibytes) return kibibytes * 1024;
  }
  return std::nullopt;
}

}  // namespace paceline
