#include "paceline/launch/nodes/job_secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "paceline/base/error.h"
#include "paceline/base/unique_fd.h"

namespace paceline::launch {
namespace {

std::string variable(const char* name);
Secret secret_from_input();
std::string write_secret(const Secret& secret);

}  // namespace

void find_secret(const std::string& file, NodeOptions& nodes) {
  const std::string path = file.empty() ? variable("PACELINE_SECRET_FILE") : file;
  if (path == "-") {
    nodes.secret = secret_from_input();
    nodes.ends_with_input = ::isatty(STDIN_FILENO) == 0;  // of a terminal, only the foreground may read
    return;
  }
  if (!path.empty()) {
    nodes.secret = Secret::from_file(path);
    nodes.secret_file = std::filesystem::absolute(path).string();
    return;
  }
  if (const std::string digits = variable("PACELINE_SECRET"); !digits.empty()) {
    nodes.secret = Secret::from_hex(digits);
    return;
  }
  const auto loopback = [](const SocketAddress& address) { return address.is_loopback(); };
  if (std::all_of(nodes.addresses.begin(), nodes.addresses.end(), loopback)) return;
  if (nodes.rank != 0) {
    throw Error(
        ErrorCode::InvalidArgument,
        "a job over several hosts needs the secret of its node 0: give --secret-file (node 0 makes one where it "
        "has none, and says where)");
  }
  nodes.secret = Secret::random();
  nodes.secret_file = write_secret(*nodes.secret);
  nodes.made_secret = true;
}

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Secret secret_from_input() {
  // Byte by byte, since what follows is not ours.
  std::string line;
  char byte = 0;
  while (line.size() <= 2 * Secret::kBytes) {
    const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || byte == '\n') break;
    line += byte;
  }
  return Secret::from_hex(line);
}

std::string write_secret(const Secret& secret) {
  std::string path = (std::filesystem::temp_directory_path() / "paceline-secret-XXXXXX").string();
  const UniqueFd file(::mkostemp(path.data(), O_CLOEXEC));  // for this user only
  if (!file) throw system_error("cannot make a file for the job's secret", errno);
  const std::string text = secret.hex() + "\n";
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    const int error = errno;
    ::unlink(path.c_str());
    throw system_error("cannot write the job's secret to " + path, error);
  }
  return path;
}

}  // namespace
}  // namespace paceline::launch
