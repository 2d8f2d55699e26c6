#include "paceline/data/checkpoint_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <set>
#include <stdexcept>
#include <string_view>

#include "paceline/base/bounded_json.h"
#include "paceline/base/crc32c.h"
#include "paceline/base/durable_file.h"
#include "paceline/base/error.h"
#include "paceline/base/read_file.h"
#include "paceline/data/folder_lock.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormat = "paceline.checkpoint/1";
constexpr const char* kManifest = "manifest.json";
constexpr std::uint64_t kMostManifestBytes = std::uint64_t{64} << 20;
constexpr std::size_t kMostManifestDepth = 32;
constexpr std::uint64_t kLastNumber = 999'999'999'999'999'999;  // of 18 digits

/// N of ".../save-N", which has 6 to 18 digits, or 0 for any other name.
std::uint64_t number_of(const fs::path& checkpoint) {
  constexpr std::string_view kPrefix = "save-";
  const std::string whole_name = checkpoint.filename().string();
  std::string_view name = whole_name;
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

void remove_unfinished(const fs::path& folder);
std::uint64_t next_number(const fs::path& folder);
void remove_oldest(const fs::path& newest, std::size_t keep);
/// Whether it has its manifest and all files with their sizes; what they hold is not looked at.
bool is_whole(const fs::path& checkpoint);
Manifest read_manifest(const fs::path& checkpoint);
void require_plain_names(const Manifest& manifest);
/// One that has the size it was written with.
RegularFile open_file(const fs::path& checkpoint, const CheckpointFile& file);
std::uint32_t checksum_of(const json& body);
std::uint32_t checksum_of(RegularFile file);

}  // namespace

fs::path begin_checkpoint(const fs::path& folder) {
  return or_system_error(fmt::format("cannot save to {}", folder.string()), [&] {
    fs::create_directories(folder);
    own_folder(folder);
    remove_unfinished(folder);
    fs::path part = folder / fmt::format("save-{:06}.part", next_number(folder));
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
  or_system_error(fmt::format("cannot finish {}", complete.string()), [&] { fs::rename(part, complete); });
  sync_folder(part.parent_path());
  remove_oldest(complete, keep);
  return complete;
}

std::vector<fs::path> checkpoints(const fs::path& folder) {
  return or_system_error(fmt::format("cannot read {}", folder.string()), [&] {
    std::vector<fs::path> found;
    if (!fs::exists(folder)) return found;
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (number_of(entry.path()) > 0) found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end(),
              [](const fs::path& a, const fs::path& b) { return number_of(a) > number_of(b); });
    return found;
  });
}

Manifest verify_checkpoint(const fs::path& checkpoint) {
  Manifest manifest = read_manifest(checkpoint);
  for (const CheckpointFile& file : manifest.files) {
    if (checksum_of(open_file(checkpoint, file)) == file.checksum) continue;
    throw Error(ErrorCode::Corrupt,
                fmt::format("{} is damaged: its checksum is wrong", (checkpoint / file.name).string()));
  }
  return manifest;
}

namespace {

void remove_unfinished(const fs::path& folder) {
  std::vector<fs::path> unfinished;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".part" && number_of(entry.path().stem()) > 0) unfinished.push_back(entry.path());
  }
  for (const fs::path& path : unfinished) fs::remove_all(path);
}

// One more than the last. A folder left by hand may have used up all numbers; then only good ones count.
std::uint64_t next_number(const fs::path& folder) {
  const auto all = checkpoints(folder);
  if (all.empty()) return 1;
  if (number_of(all[0]) < kLastNumber) return number_of(all[0]) + 1;
  const auto last = std::find_if(all.begin(), all.end(), is_whole);
  std::uint64_t next = last == all.end() ? 1 : number_of(*last) + 1;
  const auto taken = [&] {
    return std::any_of(all.begin(), all.end(), [&](const fs::path& path) { return number_of(path) == next; });
  };
  while (taken()) ++next;
  if (next <= kLastNumber) return next;
  throw Error(ErrorCode::InvalidArgument, fmt::format("cannot save to {}: no number comes after {}; save elsewhere",
                                                      folder.string(), all[0].string()));
}

// What is not whole does not count, and is left alone: it may be anybody's.
void remove_oldest(const fs::path& newest, std::size_t keep) {
  const auto all = checkpoints(newest.parent_path());
  if (all.size() <= keep) return;
  std::size_t kept = 1;
  for (const fs::path& path : all) {
    if (path == newest || !is_whole(path)) continue;
    if (++kept <= keep) continue;
    or_system_error(fmt::format("cannot remove {}", path.string()), [&] { fs::remove_all(path); });
  }
}

bool is_whole(const fs::path& checkpoint) {
  try {
    for (const CheckpointFile& file : read_manifest(checkpoint).files) open_file(checkpoint, file);
    return true;
  } catch (const Error&) {
    return false;
  }
}

Manifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kManifest;
  const auto bytes = read_whole_file(path, kMostManifestBytes, Links::Refuse);
  Manifest manifest;
  try {
    const json outer =
        parse_bounded_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, kMostManifestDepth);
    const json& body = outer.at("body");
    if (body.at("format") != kFormat) throw std::runtime_error("it has another format");
    if (outer.at("crc32c").get<std::uint32_t>() != checksum_of(body)) throw std::runtime_error("its checksum is wrong");
    for (const json& file : body.at("files")) {
      manifest.files.push_back({.name = file.at("name").get<std::string>(),
                                .bytes = file.at("bytes").get<std::uint64_t>(),
                                .checksum = file.at("crc32c").get<std::uint32_t>()});
    }
    require_plain_names(manifest);
    manifest.contents = body.at("contents").dump();
  } catch (const std::exception& error) {
    throw Error(ErrorCode::Corrupt, fmt::format("{} is damaged: {}", path.string(), error.what()));
  }
  return manifest;
}

void require_plain_names(const Manifest& manifest) {
  std::set<std::string_view> names;
  for (const auto& [name, bytes, checksum] : manifest.files) {
    constexpr std::string_view kNotInNames("/\0", 2);
    if (name.empty() || name == "." || name == ".." || name.find_first_of(kNotInNames) != std::string::npos) {
      throw std::runtime_error(fmt::format("{} is no name of a file in this folder", json(name).dump()));
    }
    if (!names.insert(name).second) throw std::runtime_error(fmt::format("it names '{}' twice", name));
  }
}

RegularFile open_file(const fs::path& checkpoint, const CheckpointFile& file) {
  const fs::path at = checkpoint / file.name;
  RegularFile opened(at, Links::Refuse);
  if (opened.size() == file.bytes) return opened;
  throw Error(ErrorCode::Corrupt,
              fmt::format("{} has {} bytes where {} were written", at.string(), opened.size(), file.bytes));
}

std::uint32_t checksum_of(const json& body) {
  const std::string text = body.dump();
  return crc32c(std::as_bytes(std::span(text)));
}

std::uint32_t checksum_of(RegularFile file) {
  std::vector<std::byte> piece(std::size_t{1} << 20);
  std::uint32_t checksum = 0;
  std::uint64_t left = file.size();  // and no further, should it grow
  while (left > 0) {
    const auto got = file.read(std::span(piece).first(std::min<std::uint64_t>(piece.size(), left)));
    if (got == 0) break;
    checksum = crc32c(std::span(piece).first(got), checksum);
    left -= got;
  }
  return checksum;
}

}  // namespace

}  // namespace paceline
