// Paceline as a stranger's project finds it: installed under a prefix of its own.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/support/build_paths.h"
#include "tests/support/launched_job.h"

namespace paceline::test {

struct Command {
  int status = -1;
  std::string output = {};
};

/// Runs this for the shell. What it says on both streams.
inline Command sh(const std::string& command) {
  std::FILE* pipe = ::popen(("exec 2>&1; " + command).c_str(), "r");
  if (pipe == nullptr) throw system_error("popen", errno);
  Command result;
  char bytes[4096];
  while (const std::size_t count = std::fread(bytes, 1, sizeof bytes, pipe)) result.output.append(bytes, count);
  const int status = ::pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

/// A prefix with these components of the build that this test is part of, which is gone at the end.
class Installed {
 public:
  explicit Installed(const std::vector<std::string>& components) {
    for (const std::string& component : components) {
      const Command done =
          sh(fmt::format("cmake --install '{}' --prefix '{}' --component {}", test::kBuildDir, prefix(), component));
      EXPECT_EQ(done.status, 0) << done.output;
    }
  }

  std::string prefix() const { return (folder_.path / "usr").string(); }
  std::string build() const { return (folder_.path / "build").string(); }
  std::string program() const { return prefix() + "/bin/paceline"; }

  Command configure(const std::string& source) const {
    const std::string flags = std::string(test::kSanitizeFlags);
    return sh(fmt::format("cmake -S '{}' -B '{}' -G Ninja -D CMAKE_PREFIX_PATH='{}' -D CMAKE_CXX_FLAGS='{}'", source,
                          build(), prefix(), flags));
  }
  Command make() const { return sh(fmt::format("cmake --build '{}' -j 2", build())); }

 private:
  TemporaryFolder folder_;
};

}  // namespace paceline::test
