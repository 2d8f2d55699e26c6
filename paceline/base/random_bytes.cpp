#include "paceline/base/random_bytes.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>

#include "paceline/base/error.h"

namespace paceline {

void random_bytes(std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t got = ::getrandom(to.data(), to.size(), 0);
    if (got < 0 && errno != EINTR) throw system_error("cannot get random bytes", errno);
    if (got > 0) to = to.subspan(static_cast<std::size_t>(got));
  }
}

std::uint64_t random_number() {
  std::uint64_t number = 0;
  random_bytes(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

std::string random_digits(int numbers) {
  std::string digits;
  for (int i = 0; i < numbers; ++i) digits += fmt::format("{:016x}", random_number());
  return digits;
}

}  // namespace paceline
