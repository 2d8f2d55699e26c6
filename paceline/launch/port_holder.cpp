#include "paceline/launch/port_holder.h"

#include <dirent.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

namespace paceline::launch {
namespace {

/// A line of /proc/net/tcp or tcp6.
struct Entry {
  std::string address;  // hexadecimal, as the kernel prints it
  unsigned port = 0;
  std::string peer;
  unsigned peer_port = 0;
  unsigned state = 0;
  uid_t user = 0;
  unsigned long inode = 0;
};

constexpr unsigned kEstablished = 1, kListen = 10;

std::vector<Entry> entries(const char* file);
std::string kernel_text(const SocketAddress& address);
bool is_wildcard(const std::string& address) { return address.find_first_not_of('0') == std::string::npos; }
bool listens_at(const Entry& entry, const SocketAddress& address) {
  return entry.state == kListen && entry.port == address.port() &&
         (entry.address == kernel_text(address) || is_wildcard(entry.address));
}
std::string process_with_socket(unsigned long inode);

}  // namespace

std::string port_holder(const SocketAddress& address) {
  for (const char* file : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    for (const Entry& entry : entries(file)) {
      if (!listens_at(entry, address)) continue;
      const std::string process = process_with_socket(entry.inode);
      return process.empty() ? fmt::format("a process of user {}", entry.user) : process;
    }
  }
  return "";
}

std::optional<uid_t> socket_owner(const SocketAddress& address, const SocketAddress& peer) {
  const std::string wanted = kernel_text(address), wanted_peer = kernel_text(peer);
  for (const Entry& entry : entries(address.family() == AF_INET ? "/proc/self/net/tcp" : "/proc/self/net/tcp6")) {
    const bool is_it = entry.port == address.port() && entry.address == wanted && entry.peer_port == peer.port() &&
                       entry.peer == wanted_peer;
    if (entry.state == kEstablished && is_it) return entry.user;
  }
  return std::nullopt;
}

std::optional<uid_t> listener_owner(const SocketAddress& address) {
  for (const char* file : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    for (const Entry& entry : entries(file)) {
      if (listens_at(entry, address)) return entry.user;
    }
  }
  return std::nullopt;
}

std::string why_not_ours(std::optional<uid_t> owner) {
  if (owner == ::geteuid()) return "";
  if (!owner) return "/proc/net/tcp does not show whose it is, and this job has no secret; give --secret-file";
  return fmt::format("it belongs to another user ({}), and this job has no secret; give --secret-file", *owner);
}

namespace {

std::vector<Entry> entries(const char* file) {
  std::vector<Entry> found;
  std::ifstream lines(file);
  std::string line;
  std::getline(lines, line);  // the names of its columns
  while (std::getline(lines, line)) {
    Entry entry;
    char address[33] = "", peer[33] = "";
    if (std::sscanf(line.c_str(), " %*d: %32[0-9A-F]:%x %32[0-9A-F]:%x %x %*s %*s %*s %u %*d %lu", address, &entry.port,
                    peer, &entry.peer_port, &entry.state, &entry.user, &entry.inode) == 7) {
      entry.address = address;
      entry.peer = peer;
      found.push_back(entry);
    }
  }
  return found;
}

// Words of 32 bits in network order, printed as numbers of this machine.
std::string kernel_text(const SocketAddress& address) {
  std::array<std::uint32_t, 4> words{};
  std::size_t count = 1;
  if (address.family() == AF_INET) {
    std::memcpy(words.data(), &reinterpret_cast<const sockaddr_in*>(address.get())->sin_addr, 4);
  } else {
    std::memcpy(words.data(), &reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr, 16);
    count = 4;
  }
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += fmt::format("{:08X}", words[i]);
  return text;
}

std::string process_with_socket(unsigned long inode) {
  using Directory = std::unique_ptr<DIR, int (*)(DIR*)>;
  const std::string wanted = fmt::format("socket:[{}]", inode);
  const Directory processes(::opendir("/proc"), ::closedir);
  while (const dirent* process = processes ? ::readdir(processes.get()) : nullptr) {
    if (std::atoi(process->d_name) <= 0) continue;
    const std::string folder = fmt::format("/proc/{}/fd", process->d_name);
    const Directory files(::opendir(folder.c_str()), ::closedir);
    while (const dirent* file = files ? ::readdir(files.get()) : nullptr) {
      std::array<char, 64> target{};
      const ssize_t length = ::readlink((folder + "/" + file->d_name).c_str(), target.data(), target.size());
      if (length <= 0 || std::string_view(target.data(), static_cast<std::size_t>(length)) != wanted) continue;
      std::ifstream command_line(fmt::format("/proc/{}/cmdline", process->d_name), std::ios::binary);
      std::ostringstream text;
      text << command_line.rdbuf();
      std::string command = text.str();
      while (command.ends_with('\0')) command.pop_back();
      std::replace(command.begin(), command.end(), '\0', ' ');
      return fmt::format("process {} ({})", process->d_name, command.substr(0, 200));
    }
  }
  return "";
}

}  // namespace
}  // namespace paceline::launch
