// The floors of docs/design.md, as far as includes show them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "tests/support/build_paths.h"

namespace fs = std::filesystem;

namespace {

const fs::path kRoot = fs::path(paceline::test::kSourceDir) / "paceline";

/// Each folder may include itself and folders with a smaller number. tools/ and train/ meet through files only.
const std::map<std::string, int> kFloors = {{"base", 1}, {"net", 2},  {"store", 3}, {"comm", 4},   {"observe", 5},
                                            {"data", 5}, {"sync", 6}, {"train", 7}, {"launch", 7}, {"tools", 8}};

/// Calls `check(file, included)` for all includes below `root`.
template <class Check>
void for_each_include(const fs::path& root, Check check) {
  const std::regex include(R"re(^\s*#\s*include\s*[<"]([^>"]+)[>"].*)re");
  int seen = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".h" && entry.path().extension() != ".cpp") continue;
    std::ifstream file(entry.path());
    std::string line;
    std::smatch match;
    while (std::getline(file, line)) {
      if (!std::regex_match(line, match, include)) continue;
      ++seen;
      check(fs::relative(entry.path(), root), match[1].str());
    }
  }
  ASSERT_GT(seen, 0) << "no includes found below " << root;
}

TEST(Layers, NothingBelowTrainIncludesLibtorch) {
  for_each_include(kRoot, [](const fs::path& file, const std::string& included) {
    if (*file.begin() == "train" || file == "paceline.h") return;
    for (const std::string library : {"torch/", "ATen/", "c10/"}) {
      EXPECT_FALSE(included.starts_with(library)) << file << " includes " << included;
    }
  });
}

TEST(Layers, NoIncludeClimbs) {
  for_each_include(kRoot, [](const fs::path& file, const std::string& included) {
    if (file == "paceline.h" || !included.starts_with("paceline/")) return;
    const auto from = file.begin()->string();
    const auto to = std::next(fs::path(included).begin())->string();
    ASSERT_TRUE(kFloors.contains(from)) << file << " is in a folder without a floor";
    ASSERT_TRUE(kFloors.contains(to)) << file << " includes " << included;
    const bool below = kFloors.at(to) < kFloors.at(from);
    EXPECT_TRUE(from == to || below) << file << " includes " << included << ", which is not below it";
  });
}

/// Sub-folders that a sub-folder may include beside its own folder's files; all others may include none of their
/// siblings.
const std::map<std::string, std::set<std::string>> kSiblings = {
    {"comm/shm", {"comm/status"}},        {"comm/tcp", {"comm/message", "comm/status"}},
    {"launch/failure", {"launch/nodes"}}, {"launch/nodes", {"launch/failure"}},
    {"train/ddp", {"train/state"}},
};

TEST(Layers, SubFoldersIncludeOnlyTheSiblingsTheyAreBuiltOn) {
  for_each_include(kRoot, [](const fs::path& file, const std::string& included) {
    if (!included.starts_with("paceline/")) return;
    const fs::path to = fs::path(included).lexically_relative("paceline").parent_path(), from = file.parent_path();
    if (from == to || from.parent_path().empty() || to.parent_path() != from.parent_path()) return;
    const auto allowed = kSiblings.find(from.string());
    EXPECT_TRUE(allowed != kSiblings.end() && allowed->second.contains(to.string()))
        << file << " includes " << included << ", of a sub-folder that it is not built on";
  });
}

}  // namespace
