// Hosts with a network between them, out of network namespaces: each with a name, addresses and links of its own. Needs
// root, iproute2 and iptables.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "paceline/base/error.h"

namespace paceline::test {

inline void shell(const std::string& command) {
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
}

/// Names of namespaces and hosts are this process's own from the first call on: they lie in mounts that only it and its
/// children see, and go with the last of them, however that ends.
inline void own_names() {
  static const bool done = [] {
    if (::unshare(CLONE_NEWNS) != 0) throw system_error("cannot have mounts of its own (is this root?)", errno);
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      throw system_error("cannot detach mounts", errno);
    std::filesystem::create_directories("/run/netns");
    if (::mount("none", "/run/netns", "tmpfs", 0, nullptr) != 0) throw system_error("cannot mount a tmpfs", errno);
    return true;
  }();
  static_cast<void>(done);
}

/// `count` hosts at one switch. Host i is called "h<n>-<i>", has 10.77.0.<i+1> and fd77::<i+1>, and is gone with this.
class NetworkHosts {
 public:
  explicit NetworkHosts(int count) {
    own_names();
    static std::atomic<int> networks{0};
    const int network = ++networks;
    switch_ = fmt::format("s{}", network);
    shell(fmt::format(
        "ip netns add {0} && ip -n {0} link add name sw type bridge forward_delay 0 && ip -n {0} link set sw up",
        switch_));
    std::string names = "127.0.0.1 localhost\n::1 localhost\n";
    for (int host = 0; host < count; ++host) {
      names_.push_back(fmt::format("h{}-{}", network, host));
      shell(fmt::format(
          "ip netns add {0} && ip -n {0} link set lo up && "
          "ip -n {0} link add eth type veth peer name p{2} netns {1} && "
          "ip -n {1} link set p{2} master sw up && ip -n {0} link set eth up && "
          "ip -n {0} address add 10.77.0.{3}/24 dev eth && ip -n {0} address add fd77::{3}/64 dev eth nodad",
          names_.back(), switch_, host, host + 1));
    }
  }
  ~NetworkHosts() {
    std::string command = "ip netns delete " + switch_;
    for (const std::string& name : names_) command += "; ip netns delete " + name;
    if (std::system(command.c_str()) != 0) std::fprintf(stderr, "failed: %s\n", command.c_str());
  }
  NetworkHosts(const NetworkHosts&) = delete;
  NetworkHosts& operator=(const NetworkHosts&) = delete;

  const std::string& name(int host) const { return names_[static_cast<std::size_t>(host)]; }
  static std::string address(int host) { return fmt::format("10.77.0.{}", host + 1); }
  static std::string address_v6(int host) { return fmt::format("fd77::{}", host + 1); }

  /// What a command is to be put behind to run on that host. It becomes the command.
  std::vector<std::string> on(int host) const {
    return {"/usr/bin/env", "ip",    "netns", "exec", name(host),
            "unshare",      "--uts", "sh",    "-c",   "hostname \"$0\" && exec \"$@\"",
            name(host)};
  }
  void run(int host, const std::string& command) const {
    shell(fmt::format("ip netns exec {} {}", name(host), command));
  }

  // Ways to cut a host off.

  void drop_what_comes_to(int host) const { run(host, "iptables -w -A INPUT -i eth -j DROP"); }
  void drop_what_leaves(int host) const { run(host, "iptables -w -A OUTPUT -o eth -j DROP"); }
  void take_link_down(int host) const { run(host, "ip link set eth down"); }

 private:
  std::string switch_;
  std::vector<std::string> names_;
};

/// Makes `lines` all of /etc/hosts, for this process and its children, while it lives. `file` is made.
class OwnHostNames {
 public:
  OwnHostNames(const std::filesystem::path& file, const std::string& lines) {
    own_names();
    std::ofstream(file) << "127.0.0.1 localhost\n::1 localhost\n" << lines;
    if (::mount(file.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) != 0) throw system_error("cannot mount", errno);
  }
  ~OwnHostNames() { ::umount2("/etc/hosts", MNT_DETACH); }
  OwnHostNames(const OwnHostNames&) = delete;
  OwnHostNames& operator=(const OwnHostNames&) = delete;
};

}  // namespace paceline::test
