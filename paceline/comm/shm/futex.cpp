#include "paceline/comm/shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace paceline {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Nanoseconds limit) {
  if (limit <= Nanoseconds::zero()) return;
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(limit);
  timespec relative{};
  relative.tv_sec = static_cast<time_t>(whole.count());
  relative.tv_nsec = static_cast<long>((limit - whole).count());
  // Every outcome (woken, changed, timed out, interrupted) means: look again.
  (void)syscall(SYS_futex, &word, FUTEX_WAIT, expected, &relative, nullptr, 0);
}

void futex_wake(const std::atomic<std::uint32_t>& word) {
  (void)syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace paceline
