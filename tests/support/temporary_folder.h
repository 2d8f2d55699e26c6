#pragma once

#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "paceline/base/error.h"

namespace paceline {

/// A folder that goes with this object, with all that is in it.
struct TemporaryFolder {
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "paceline-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw system_error("mkdtemp", errno);
    path = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  std::string file(const std::string& name, const std::string& text, int mode) const {
    const std::filesystem::path file_path = path / name;
    std::ofstream(file_path) << text;
    ::chmod(file_path.c_str(), static_cast<mode_t>(mode));
    return file_path.string();
  }
  std::filesystem::path path;
};

}  // namespace paceline
