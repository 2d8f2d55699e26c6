#include "paceline/net/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "paceline/base/error.h"
#include "paceline/base/random_bytes.h"
#include "paceline/base/unique_fd.h"

namespace paceline {

Secret Secret::random() {
  Secret secret;
  random_bytes(std::as_writable_bytes(std::span(secret.bytes_)));
  return secret;
}

Secret Secret::from_hex(std::string_view text) {
  const std::string_view space = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(space);
  text = begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(space) - begin + 1);
  Secret secret;
  bool good = text.size() == 2 * kBytes;
  for (std::size_t i = 0; good && i < kBytes; ++i) {
    const char* at = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(at, at + 2, secret.bytes_[i], 16);
    good = error == std::errc() && end == at + 2;
  }
  if (good) return secret;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("a secret has {} hexadecimal digits ('openssl rand -hex {}' makes one), but this one has {} "
                          "characters or others",
                          2 * kBytes, kBytes, text.size()));
}

Secret Secret::from_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw system_error("cannot open the secret file " + path, errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) throw system_error("cannot look at the secret file " + path, errno);
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the secret file {} can be used by others than its owner: chmod 600 {}", path, path));
  }
  std::array<char, 256> text{};
  const ssize_t bytes = ::read(file.get(), text.data(), text.size());
  if (bytes < 0) throw system_error("cannot read the secret file " + path, errno);
  Secret secret = from_hex({text.data(), static_cast<std::size_t>(bytes)});
  OPENSSL_cleanse(text.data(), text.size());
  return secret;
}

Secret::~Secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

std::string Secret::hex() const {
  std::string text;
  for (const unsigned char byte : bytes_) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace paceline
