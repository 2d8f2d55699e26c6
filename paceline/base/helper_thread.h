#pragma once

#include <functional>
#include <thread>

namespace paceline {

/// Starts a thread of this library's own. It takes no signals, which belong to the program's threads. Throws System.
std::thread start_helper_thread(std::function<void()> body);

}  // namespace paceline
