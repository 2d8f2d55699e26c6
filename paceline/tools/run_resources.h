#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <string>

#include "paceline/base/unique_fd.h"
#include "paceline/comm/tcp_address.h"

namespace paceline::tools {

// What a job takes from the operating system. All throw System.

/// A descriptor that becomes readable when the process ends; empty if it has ended.
UniqueFd watch_process(pid_t pid);

/// A port of this address for programs that meet by MASTER_PORT. Bound but never listening, so the kernel gives it to
/// nobody else while a program that sets SO_REUSEADDR can still listen there.
UniqueFd reserve_port(const SocketAddress& address, int& port);

std::string random_id();

/// A job needs several descriptors a worker. Returns the limit from before, which workers get.
rlimit raise_open_files();

}  // namespace paceline::tools
