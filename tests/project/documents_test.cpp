// What the documents show is what is there.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "tests/support/build_paths.h"

namespace {

const std::filesystem::path kRoot = paceline::test::kSourceDir;

std::string read(const std::filesystem::path& path) {
  std::ifstream file(kRoot / path);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

TEST(Documents, TheReadmesProgramIsTheOneThatIsCompiled) {
  EXPECT_NE(read("README.md").find("```cpp\n" + read("examples/minimal/main.cpp") + "```"), std::string::npos)
      << "copy examples/minimal/main.cpp into README.md";
}

TEST(Documents, FilesAndLinksThatTheyNameExist) {
  const std::regex link(R"(\]\(([^)#:]+)\))"),
      source(R"(`((?:base|net|store|comm|observe|data|sync|train|launch|tools)/[\w/]+\.(?:cpp|h))`)");
  for (const char* document : {"README.md", "CONTRIBUTING.md", "docs/walkthrough.md", "docs/design.md",
                               "docs/errors.md", "docs/environment.md", "docs/coming_from_pytorch.md",
                               "docs/performance.md", "docs/bench.md", "docs/wire_format.md", "docs/install.md"}) {
    const std::string text = read(document);
    for (std::sregex_iterator match(text.begin(), text.end(), link), end; match != end; ++match) {
      const auto target = (kRoot / document).parent_path() / (*match)[1].str();
      EXPECT_TRUE(std::filesystem::exists(target)) << document << " links to " << (*match)[1];
    }
    for (std::sregex_iterator match(text.begin(), text.end(), source), end; match != end; ++match) {
      EXPECT_TRUE(std::filesystem::exists(kRoot / "paceline" / (*match)[1].str())) << document << ": " << (*match)[1];
    }
  }
}

TEST(Documents, EveryErrorsNumberIsExplained) {
  const std::string header = read("paceline/base/error.h"), errors = read("docs/errors.md");
  const std::regex fault(R"(\w+ = (\d\d\d),)");
  int found = 0;
  for (std::sregex_iterator match(header.begin(), header.end(), fault), end; match != end; ++match, ++found) {
    EXPECT_NE(errors.find("| E" + (*match)[1].str() + " | "), std::string::npos) << "E" << (*match)[1];
  }
  EXPECT_GE(found, 15);
}

// By its name or its number.
TEST(Documents, EveryErrorsNumberIsTested) {
  std::string tests;
  for (const auto& file : std::filesystem::recursive_directory_iterator(kRoot / "tests")) {
    const auto name = std::filesystem::relative(file.path(), kRoot);
    if (name.extension() == ".cpp" && name != "tests/project/documents_test.cpp") tests += read(name);
  }
  const std::string header = read("paceline/base/error.h");
  const std::regex fault(R"((\w+) = (\d\d\d),)");
  for (std::sregex_iterator match(header.begin(), header.end(), fault), end; match != end; ++match) {
    const std::string name = (*match)[1], number = (*match)[2];
    const bool tested =
        tests.find("Fault::" + name) != std::string::npos || tests.find("E" + number) != std::string::npos;
    EXPECT_TRUE(tested) << name << ", E" << number;
  }
}

// Function names of the walkthrough stand in the file in front of them.
TEST(Documents, TheWalkthroughNamesFunctionsThatExist) {
  const std::string text = read("docs/walkthrough.md");
  const std::regex step(R"(\| `([\w/]+\.cpp)` ((?:`\w+`(?:, )?)+) \|)"), name(R"(`(\w+)`)");
  int found = 0;
  for (std::sregex_iterator match(text.begin(), text.end(), step), end; match != end; ++match) {
    const std::string source = read(std::filesystem::path("paceline") / (*match)[1].str());
    const std::string names = (*match)[2];
    for (std::sregex_iterator one(names.begin(), names.end(), name); one != end; ++one, ++found) {
      EXPECT_NE(source.find((*one)[1].str() + "("), std::string::npos) << (*match)[1] << " has no " << (*one)[1];
    }
  }
  EXPECT_GE(found, 10);
}

}  // namespace
