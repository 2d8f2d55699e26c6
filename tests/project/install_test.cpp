// What `cmake --install` leaves is enough for a project of somebody else, without libtorch and without this source.
#include "tests/support/build_paths.h"
#include "tests/support/installed.h"

namespace paceline {
namespace {

const std::string kConsumer = std::string(test::kSourceDir) + "/tests/project/installed_core";

TEST(Install, AProjectWithoutLibtorchBuildsAgainstItAndRunsUnderTheInstalledLauncher) {
  const test::Installed installed({"program", "core"});
  const test::Command configured = installed.configure(kConsumer);
  ASSERT_EQ(configured.status, 0) << configured.output;
  const test::Command made = installed.make();
  ASSERT_EQ(made.status, 0) << made.output;
  const test::Command ran =
      test::sh(fmt::format("'{}' run -n 2 -- '{}/installed_core'", installed.program(), installed.build()));
  EXPECT_EQ(ran.status, 0) << ran.output;
  EXPECT_EQ(count(ran.output, "of 2 over shm: sum 3"), 2u) << ran.output;
}

TEST(Install, SaysWhyThereIsNoTrain) {
  const test::Installed installed({"core"});
  const TemporaryFolder project;
  project.file("CMakeLists.txt",
               "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\n"
               "find_package(paceline 0.1 REQUIRED COMPONENTS core train)\n",
               0644);
  const test::Command configured = installed.configure(project.path);
  EXPECT_NE(configured.status, 0) << configured.output;
  EXPECT_NE(configured.output.find("paceline::train"), std::string::npos) << configured.output;
  EXPECT_NE(configured.output.find("not installed"), std::string::npos) << configured.output;
}

TEST(Install, IsRefusedWhereAnotherVersionIsAskedFor) {
  const test::Installed installed({"core"});
  const TemporaryFolder project;
  project.file("CMakeLists.txt",
               "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\nfind_package(paceline 0.2 REQUIRED)\n",
               0644);
  EXPECT_NE(installed.configure(project.path).status, 0);
}

// Nothing that is installed names the folders in which it was built, so it may move.
TEST(Install, KnowsNothingOfWhereItWasBuilt) {
  const test::Installed installed({"core"});
  const test::Command found = test::sh(fmt::format("grep -rlE --include=*.cmake --include=*.h '{}|{}' '{}'",
                                                   test::kSourceDir, test::kBuildDir, installed.prefix()));
  EXPECT_EQ(found.status, 1) << found.output;
}

}  // namespace
}  // namespace paceline
