#include "idx.h"

#include <fmt/core.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>

namespace fashion_mnist {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void damaged(const fs::path& file, const std::string& why) {
  throw std::runtime_error(
      fmt::format("{} is damaged: {}; get a fresh copy, e.g. with `apt-get install --reinstall dataset-fashion-mnist`",
                  file.string(), why));
}

void require_folder(const fs::path& folder) {
  if (fs::is_directory(folder)) return;
  throw std::runtime_error(fmt::format(
      "there is no folder {}: name one with --data, or install Debian's (/usr/share/datasets/fashion-mnist) "
      "with `apt-get install dataset-fashion-mnist`",
      folder.string()));
}

std::vector<std::uint8_t> read_file(const fs::path& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  if (error) {
    throw std::runtime_error(fmt::format(
        "cannot read {}: {}; --data must name a folder with the files of `apt-get install dataset-fashion-mnist`",
        file.string(), error.message()));
  }
  if (size > std::numeric_limits<uInt>::max()) damaged(file, "it is larger than 4 GiB");
  std::vector<std::uint8_t> bytes(size);
  std::ifstream in(file, std::ios::binary);
  if (!in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size))) {
    throw std::runtime_error(fmt::format("cannot read {}: {}", file.string(), std::strerror(errno)));
  }
  return bytes;
}

/// A gzip file in memory that is inflated piece by piece, so that a header can be judged before its promises cost
/// memory.
class Inflater {
 public:
  explicit Inflater(const fs::path& file) : file_(file), compressed_(read_file(file)) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    if (inflateInit2(&stream_, kGzipOnly) != Z_OK) throw std::bad_alloc();
    stream_.next_in = compressed_.data();
    stream_.avail_in = static_cast<uInt>(compressed_.size());
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  void read(std::span<std::uint8_t> out) {
    if (inflate_into(out) < out.size()) damaged(file_, "it ends too early");
  }

  /// Nothing may follow, and the checksum at the end must be right.
  void expect_end() {
    std::array<std::uint8_t, 1> extra;
    if (inflate_into(extra) > 0) damaged(file_, "it has more bytes than its header says");
    if (status_ != Z_STREAM_END) damaged(file_, "it ends too early");
    if (stream_.avail_in > 0) damaged(file_, "bytes follow after its end");
  }

  /// No more can come out of this file: deflate shrinks by 1032 at most, and zlib counts in uInt.
  std::size_t most_bytes() const {
    return std::min<std::size_t>(compressed_.size() * 1032, std::numeric_limits<uInt>::max());
  }

 private:
  std::size_t inflate_into(std::span<std::uint8_t> out) {
    stream_.next_out = out.data();
    stream_.avail_out = static_cast<uInt>(out.size());
    while (stream_.avail_out > 0 && status_ == Z_OK) status_ = inflate(&stream_, Z_NO_FLUSH);
    const bool ended = status_ == Z_OK || status_ == Z_STREAM_END || status_ == Z_BUF_ERROR;  // the last: no input left
    if (!ended)
      damaged(file_, stream_.msg != nullptr ? fmt::format("gzip says \"{}\"", stream_.msg) : "it is not gzip");
    return out.size() - stream_.avail_out;
  }

  fs::path file_;
  std::vector<std::uint8_t> compressed_;
  z_stream stream_{};
  int status_ = Z_OK;
};

std::uint32_t read_big_endian(Inflater& in) {
  std::array<std::uint8_t, 4> b;
  in.read(b);
  return std::uint32_t{b[0]} << 24 | std::uint32_t{b[1]} << 16 | std::uint32_t{b[2]} << 8 | std::uint32_t{b[3]};
}

/// The bytes of an IDX file whose elements have the given shape, however many there are. The format is a magic number
/// (0, 0, type, dimensions; type 8 is unsigned bytes), the dimensions, then the elements.
std::vector<std::uint8_t> read_idx(const fs::path& file, std::initializer_list<std::size_t> element_shape) {
  Inflater in(file);
  const auto magic = read_big_endian(in);
  const auto expected = static_cast<std::uint32_t>(0x0800 + 1 + element_shape.size());
  if (magic != expected) damaged(file, fmt::format("its magic number is {:#010x}, not {:#010x}", magic, expected));
  std::size_t bytes = read_big_endian(in);
  for (const std::size_t wanted : element_shape) {
    const auto side = read_big_endian(in);
    if (side != wanted) damaged(file, fmt::format("it has images of {} pixels a side, not {}", side, wanted));
    bytes *= wanted;
  }
  if (bytes > in.most_bytes()) damaged(file, "it is too small for the number of elements in its header");
  std::vector<std::uint8_t> data(bytes);
  in.read(data);
  in.expect_end();
  return data;
}

}  // namespace

LabelledImages read_images(const fs::path& folder, Split split) {
  require_folder(folder);
  const std::string part = split == Split::Train ? "train" : "t10k";
  const auto image_file = folder / (part + "-images-idx3-ubyte.gz");
  const auto label_file = folder / (part + "-labels-idx1-ubyte.gz");
  LabelledImages images{.pixels = read_idx(image_file, {kSide, kSide}), .labels = read_idx(label_file, {})};

  const std::size_t count = images.pixels.size() / (kSide * kSide);
  if (count != images.size()) {
    damaged(label_file, fmt::format("it has {} labels for the {} images of {}", images.size(), count,
                                    image_file.filename().string()));
  }
  if (count == 0) damaged(image_file, "it has no images");
  const auto bad =
      std::find_if(images.labels.begin(), images.labels.end(), [](int label) { return label >= kClasses; });
  if (bad != images.labels.end()) {
    damaged(label_file,
            fmt::format("label {} of image {} is not in 0 to {}", *bad, bad - images.labels.begin(), kClasses - 1));
  }
  return images;
}

}  // namespace fashion_mnist
