#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <string>

#include "paceline/base/unique_fd.h"
#include "paceline/net/tcp_address.h"

namespace paceline::launch {

// What a job takes from the operating system. All throw System.

/// A descriptor that becomes readable when the process ends; empty if it has ended.
UniqueFd watch_process(pid_t pid);

/// A port of this address for programs that meet by MASTER_PORT. Bound but never listening, so the kernel gives it to
/// nobody else while a program that sets SO_REUSEADDR can still listen there.
UniqueFd reserve_port(const SocketAddress& address, int& port);

/// Raises this process's limit of open files as far as it goes, and returns the one for workers: theirs from before, or
/// more where it is too low for as many peers. Throws System, with the number needed, where that may not be had.
rlimit open_files_for(int workers);

}  // namespace paceline::launch
