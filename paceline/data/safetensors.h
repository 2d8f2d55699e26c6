#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace paceline {

/// A tensor of a safetensors file: 8 bytes of header length, a header in JSON, then the values of all tensors, row by
/// row, little-endian (https://github.com/huggingface/safetensors). Knows nothing of torch.
struct StoredTensor {
  std::string name;
  std::string dtype;  ///< As the format has it: "F32", "BF16", "I64", "BOOL", ...
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> data;
};

/// Bytes an element of a type of that name has; 0 if there is none.
std::size_t stored_element_size(const std::string& dtype);

/// What a written file is known by.
struct WrittenFile {
  std::uint64_t bytes = 0;
  std::uint32_t checksum = 0;  ///< CRC-32C
};

/// Writes a new file and waits until it is on the disk. Throws System, and leaves no file, where that fails;
/// InvalidArgument for names that occur twice or data that do not have the size of their shape.
WrittenFile write_safetensors(const std::filesystem::path& path, std::span<const StoredTensor> tensors,
                              const std::map<std::string, std::string>& metadata = {});

/// A file that was read as a whole; its tensors point into it.
struct SafetensorsFile {
  std::vector<std::byte> bytes;
  std::vector<StoredTensor> tensors;  ///< In the order of their data.
  std::map<std::string, std::string> metadata;
};

/// Throws Corrupt, naming the file and what is wrong, unless it is exactly right: a header that lies in the file, is at
/// most 16 MiB of UTF-8 JSON beginning with '{', at most 4 deep, without a key twice or an unknown one; types that are
/// known; shapes whose product fits and is the data's size; data that begin at 0 and lie one after the other without a
/// gap or an overlap up to the file's end. Throws System where it cannot be read.
SafetensorsFile read_safetensors(const std::filesystem::path& path);
/// The same for bytes in memory; `name` stands in messages.
SafetensorsFile parse_safetensors(std::vector<std::byte> bytes, const std::string& name);

}  // namespace paceline
