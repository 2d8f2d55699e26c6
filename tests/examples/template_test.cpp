// The template is a project of its own: it builds against an installed Paceline, elsewhere, and trains.
#include "tests/support/installed.h"

namespace paceline {
namespace {

TEST(Template, BuildsAgainstAnInstalledPacelineAndTrainsWithTwoWorkersAsWithOne) {
  const test::Installed installed({"program", "core", "train"});
  const TemporaryFolder elsewhere;
  std::filesystem::copy(installed.prefix() + "/share/paceline/template", elsewhere.path,
                        std::filesystem::copy_options::recursive);
  const test::Command configured = installed.configure(elsewhere.path);
  ASSERT_EQ(configured.status, 0) << configured.output;
  const test::Command made = installed.make();
  ASSERT_EQ(made.status, 0) << made.output;
  const std::string program = installed.build() + "/my_training";
  for (const int workers : {1, 2}) {
    const std::string launch = workers == 1 ? "" : fmt::format("'{}' run -n {} -- ", installed.program(), workers);
    const test::Command ran = test::sh(launch + "'" + program + "'");
    EXPECT_EQ(ran.status, 0) << ran.output;
    EXPECT_NE(ran.output.find(fmt::format("{} workers, mean squared error 0.0", workers)), std::string::npos)
        << ran.output;
  }
}

}  // namespace
}  // namespace paceline
