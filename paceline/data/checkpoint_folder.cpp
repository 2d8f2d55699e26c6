#include "paceline/data/checkpoint_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>

#include "paceline/base/crc32c.h"
#include "paceline/base/durable_file.h"
#include "paceline/base/error.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormat = "paceline.checkpoint/1";
constexpr const char* kManifest = "manifest.json";
constexpr std::uint64_t kMostManifestBytes = std::uint64_t{64} << 20;

/// N of "save-N", which has 6 to 18 digits, or 0 for any other name.
std::uint64_t number_of(std::string_view name) {
  constexpr std::string_view kPrefix = "save-";
  if (!name.starts_with(kPrefix)) return 0;
  name.remove_prefix(kPrefix.size());
  const bool digits = std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
  std::uint64_t number = 0;
  if (digits && name.size() >= 6 && name.size() <= 18) std::from_chars(name.data(), name.data() + name.size(), number);
  return number;
}

/// Calls `action`, whose failure becomes a System error that says `doing`.
template <class Action>
auto or_system_error(const std::string& doing, Action action) {
  try {
    return action();
  } catch (const fs::filesystem_error& error) {
    throw system_error(doing, error.code().value());
  }
}

std::uint32_t checksum_of(const json& body) {
  const std::string text = body.dump();
  return crc32c(std::as_bytes(std::span(text)));
}

}  // namespace

fs::path begin_checkpoint(const fs::path& folder) {
  return or_system_error(fmt::format("cannot save to {}", folder.string()), [&] {
    fs::create_directories(folder);
    std::uint64_t last = 0;
    std::vector<fs::path> unfinished;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      last = std::max(last, number_of(name));
      if (name.ends_with(".part") && number_of(name.substr(0, name.size() - 5)) > 0) unfinished.push_back(entry.path());
    }
    for (const fs::path& path : unfinished) fs::remove_all(path);
    fs::path part = folder / fmt::format("save-{:06}.part", last + 1);
    if (::mkdir(part.c_str(), 0700) != 0) throw system_error(fmt::format("cannot create {}", part.string()), errno);
    return part;
  });
}

fs::path commit_checkpoint(const fs::path& part, const Manifest& manifest, std::size_t keep) {
  json body{{"format", kFormat}, {"files", json::array()}, {"contents", json::parse(manifest.contents)}};
  for (const CheckpointFile& file : manifest.files) {
    body["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"crc32c", file.checksum}});
  }
  const std::string text = json{{"body", body}, {"crc32c", checksum_of(body)}}.dump(1) + "\n";
  {
    DurableFile file(part / kManifest);
    file.write(std::as_bytes(std::span(text)));
    file.finish();
  }
  sync_folder(part);
  fs::path complete = part;
  complete.replace_extension();
  const fs::path folder = part.parent_path();
  or_system_error(fmt::format("cannot finish {}", complete.string()), [&] { fs::rename(part, complete); });
  sync_folder(folder);
  const auto all = checkpoints(folder);
  for (std::size_t i = std::max<std::size_t>(keep, 1); i < all.size(); ++i) {
    or_system_error(fmt::format("cannot remove {}", all[i].string()), [&] { fs::remove_all(all[i]); });
  }
  return complete;
}

std::vector<fs::path> checkpoints(const fs::path& folder) {
  return or_system_error(fmt::format("cannot read {}", folder.string()), [&] {
    std::vector<fs::path> found;
    if (!fs::exists(folder)) return found;
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (number_of(entry.path().filename().string()) > 0) found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
      return number_of(a.filename().string()) > number_of(b.filename().string());
    });
    return found;
  });
}

Manifest verify_checkpoint(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kManifest;
  const auto bytes = read_whole_file(path, kMostManifestBytes);
  Manifest manifest;
  try {
    const auto* text = reinterpret_cast<const char*>(bytes.data());
    const json outer = json::parse(text, text + bytes.size());
    const json& body = outer.at("body");
    if (body.at("format") != kFormat) throw std::runtime_error("it has another format");
    if (outer.at("crc32c").get<std::uint32_t>() != checksum_of(body)) throw std::runtime_error("its checksum is wrong");
    for (const json& file : body.at("files")) {
      manifest.files.push_back({.name = file.at("name").get<std::string>(),
                                .bytes = file.at("bytes").get<std::uint64_t>(),
                                .checksum = file.at("crc32c").get<std::uint32_t>()});
    }
    manifest.contents = body.at("contents").dump();
  } catch (const std::exception& error) {
    throw Error(ErrorCode::Corrupt, fmt::format("{} is damaged: {}", path.string(), error.what()));
  }
  for (const CheckpointFile& file : manifest.files) {
    const fs::path at = checkpoint / file.name;
    const auto data = read_whole_file(at);
    if (data.size() != file.bytes) {
      throw Error(ErrorCode::Corrupt,
                  fmt::format("{} has {} bytes where {} were written", at.string(), data.size(), file.bytes));
    }
    if (crc32c(data) != file.checksum) {
      throw Error(ErrorCode::Corrupt, fmt::format("{} is damaged: its checksum is wrong", at.string()));
    }
  }
  return manifest;
}

}  // namespace paceline
