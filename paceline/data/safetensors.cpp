#include "paceline/data/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "paceline/base/bounded_json.h"
#include "paceline/base/durable_file.h"
#include "paceline/base/error.h"
#include "paceline/base/read_file.h"

namespace paceline {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMostHeaderBytes = std::uint64_t{16} << 20;
constexpr std::size_t kMostDepth = 4;
constexpr const char* kMetadata = "__metadata__";

/// Bytes of a tensor of this shape; throws std::overflow_error where no memory holds it. Strides are to fit as well,
/// which take an extent of 0 for one of 1.
std::uint64_t size_of_shape(const std::vector<std::uint64_t>& shape, std::size_t element) {
  std::int64_t spanned = static_cast<std::int64_t>(element);
  bool empty = false;
  for (const std::uint64_t extent : shape) {
    empty |= extent == 0;
    if (__builtin_mul_overflow(spanned, std::max<std::uint64_t>(extent, 1), &spanned)) {
      throw std::overflow_error("its shape is larger than any memory");
    }
  }
  return empty ? 0 : static_cast<std::uint64_t>(spanned);
}

std::uint64_t length_of(std::span<const std::byte> bytes) {
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<std::uint64_t>(bytes[static_cast<std::size_t>(i)]);
  return length;
}

/// A number that JSON has as such, not as a negative, a fraction or a text.
std::uint64_t whole(const json& value) {
  if (!value.is_number_unsigned()) throw std::runtime_error("'" + value.dump() + "' is no size");
  return value.get<std::uint64_t>();
}

StoredTensor tensor_of(const std::string& name, const json& entry, std::span<const std::byte> data) {
  if (!entry.is_object() || entry.size() != 3) throw std::runtime_error("its entry is not dtype, shape, data_offsets");
  StoredTensor tensor{.name = name, .dtype = entry.at("dtype").get<std::string>(), .shape = {}, .data = {}};
  const std::size_t element = stored_element_size(tensor.dtype);
  if (element == 0) throw std::runtime_error("its type '" + tensor.dtype + "' is not known");
  if (!entry.at("shape").is_array()) throw std::runtime_error("its shape is no list");
  for (const json& extent : entry.at("shape")) tensor.shape.push_back(whole(extent));
  const json& offsets = entry.at("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) throw std::runtime_error("its data_offsets are not two");
  const std::uint64_t begin = whole(offsets[0]), end = whole(offsets[1]);
  if (begin > end || end > data.size()) throw std::runtime_error("its data lie outside of the file");
  if (size_of_shape(tensor.shape, element) != end - begin) {
    throw std::runtime_error(
        fmt::format("its data have {} bytes, its shape {}", end - begin, size_of_shape(tensor.shape, element)));
  }
  tensor.data = data.subspan(begin, end - begin);
  return tensor;
}

/// Sorts by place; throws unless the data lie one after the other and fill the file.
void require_no_gaps(std::vector<StoredTensor>& tensors, std::span<const std::byte> data) {
  // Empty ones may lie at the same place as others: by end as well.
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.data.data(), a.data.size()) < std::pair(b.data.data(), b.data.size());
  });
  const std::byte* expected = data.data();
  for (const StoredTensor& tensor : tensors) {
    if (tensor.data.data() != expected) {
      throw std::runtime_error(fmt::format("the data of '{}' leave a gap or overlap others", tensor.name));
    }
    expected += tensor.data.size();
  }
  if (expected != data.data() + data.size()) throw std::runtime_error("bytes follow the last tensor");
}

}  // namespace

std::size_t stored_element_size(const std::string& dtype) {
  static constexpr std::pair<const char*, std::size_t> kTypes[] = {
      {"F64", 8}, {"I64", 8}, {"U64", 8},  {"F32", 4}, {"I32", 4}, {"U32", 4}, {"F16", 2},
      {"I16", 2}, {"U16", 2}, {"BF16", 2}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}};
  for (const auto& [name, bytes] : kTypes) {
    if (dtype == name) return bytes;
  }
  return 0;
}

WrittenFile write_safetensors(const std::filesystem::path& path, std::span<const StoredTensor> tensors,
                              const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::uint64_t end = 0;
  for (const StoredTensor& tensor : tensors) {
    const std::size_t element = stored_element_size(tensor.dtype);
    if (header.contains(tensor.name) || tensor.name == kMetadata || element == 0 ||
        size_of_shape(tensor.shape, element) != tensor.data.size()) {
      throw Error(
          ErrorCode::InvalidArgument,
          fmt::format("tensor '{}' ({}) cannot be written to {}: its name occurs twice, its type is not known, or "
                      "its data do not have the size of its shape",
                      tensor.name, tensor.dtype, path.string()));
    }
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {end, end + tensor.data.size()}}};
    end += tensor.data.size();
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("{}: a name is not UTF-8", path.string()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that data are aligned
  std::byte length[8];
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(text.size() >> 8 * i & 0xFF);
  DurableFile file(path);
  file.write(length);
  file.write(std::as_bytes(std::span(text)));
  for (const StoredTensor& tensor : tensors) file.write(tensor.data);
  file.finish();
  return {file.bytes(), file.checksum()};
}

SafetensorsFile read_safetensors(const std::filesystem::path& path) {
  return parse_safetensors(read_whole_file(path), path.string());
}

SafetensorsFile parse_safetensors(std::vector<std::byte> bytes, const std::string& name) {
  SafetensorsFile file;
  file.bytes = std::move(bytes);
  const std::span<const std::byte> all(file.bytes);
  std::string of_tensor;
  try {
    if (all.size() < 8) throw std::runtime_error("it is shorter than its header's length");
    const std::uint64_t length = length_of(all);
    if (length > kMostHeaderBytes) throw std::runtime_error("its header would be larger than 16 MiB");
    if (length > all.size() - 8) throw std::runtime_error("its header would reach past its end");
    const auto* text = reinterpret_cast<const char*>(all.data()) + 8;
    if (length == 0 || *text != '{') throw std::runtime_error("its header does not begin with '{'");
    const json header = parse_bounded_json({text, length}, kMostDepth);
    const auto data = all.subspan(8 + length);
    for (const auto& [key, value] : header.items()) {
      if (key == kMetadata) {
        file.metadata = value.get<std::map<std::string, std::string>>();
        continue;
      }
      of_tensor = fmt::format("tensor '{}': ", key);
      file.tensors.push_back(tensor_of(key, value, data));
    }
    of_tensor.clear();
    require_no_gaps(file.tensors, data);
  } catch (const std::exception& error) {
    throw Error(ErrorCode::Corrupt,
                fmt::format("{} is no sound safetensors file: {}{}", name, of_tensor, error.what()));
  }
  return file;
}

}  // namespace paceline
