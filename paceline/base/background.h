#pragma once

#include <functional>
#include <thread>

#include "paceline/base/unique_fd.h"

namespace paceline {

// What a thread beside the program's own needs. All throw System.

/// Starts a thread that takes no signals: those belong to the program's own threads.
std::thread background_thread(std::function<void()> body);

/// A descriptor that is readable once signal_event() was called, until it is read; for threads that poll.
UniqueFd make_event();
void signal_event(const UniqueFd& event);

}  // namespace paceline
