#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace paceline {

/// Checkpoints of one job: folders save-000001, save-000002, ..., each with its files and manifest.json, which names
/// them with sizes and checksums. One is written as save-000003.part and gets its name when all of it is on the disk,
/// so a folder without ".part" was complete once, and verify() says whether it still is.
struct CheckpointFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint32_t checksum = 0;  ///< CRC-32C
};

struct Manifest {
  std::vector<CheckpointFile> files;
  std::string contents;  ///< JSON, whatever the writer says of its files.
};

/// Makes the folder for the next checkpoint, "save-000003.part", and removes unfinished ones. From then on this process
/// is the only one that may save there (own_folder()). Throws System, or InvalidArgument where another one is.
std::filesystem::path begin_checkpoint(const std::filesystem::path& folder);
/// Writes the manifest, syncs everything and gives the checkpoint its name; returns its path. Then removes the oldest
/// beyond `keep` whole ones, this one among them; a folder that is not whole counts for nothing and stays. Throws
/// System.
std::filesystem::path commit_checkpoint(const std::filesystem::path& part, const Manifest& manifest, std::size_t keep);

/// What has a checkpoint's name, newest first; empty where the folder does not exist.
std::vector<std::filesystem::path> checkpoints(const std::filesystem::path& folder);
/// Reads the manifest and compares every file with it. Throws Corrupt or System, naming the file and what is wrong;
/// also where a name leads out of the checkpoint's folder, or to a link, a FIFO or a device.
Manifest verify_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace paceline
