#include "paceline/comm/status/job_status.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "paceline/base/clock.h"

namespace paceline {
namespace {

// The launcher hears of a death from the kernel, a worker of its consequence: they come at about the same time.
constexpr Nanoseconds kLauncherTakes = std::chrono::milliseconds(60);
// The same where it has to hear it from another host's.
constexpr Nanoseconds kLaunchersTake = std::chrono::milliseconds(500);

std::size_t bytes_for(int slots) { return sizeof(StatusHeader) + static_cast<std::size_t>(slots) * sizeof(StatusSlot); }

template <std::size_t kBytes>
void put(char (&to)[kBytes], const std::string& text) {
  const std::size_t length = std::min(text.size(), kBytes - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

std::string host_name() {
  char name[65] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

/// How many slots the job status in the file has; 0 if the file is none.
int slots_of(int fd) {
  struct stat status {};
  std::uint64_t magic = 0;
  std::uint32_t slots = 0;
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size < static_cast<off_t>(bytes_for(1)) ||
      (::fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) == 0 ||
      ::pread(fd, &magic, sizeof magic, offsetof(StatusHeader, magic)) != sizeof magic ||
      ::pread(fd, &slots, sizeof slots, offsetof(StatusHeader, slots)) != sizeof slots) {
    return 0;
  }
  const bool fits = magic == StatusHeader::kMagic && slots > 0 && slots <= StatusHeader::kMostSlots &&
                    static_cast<std::size_t>(status.st_size) == bytes_for(static_cast<int>(slots));
  return fits ? static_cast<int>(slots) : 0;
}

UniqueFd open_address(const std::string& address) {
  int descriptor = -1;
  pid_t launcher = 0;
  const char* const end = address.data() + address.size();
  const auto first = std::from_chars(address.data(), end, descriptor);
  const bool divided = first.ec == std::errc() && first.ptr != end && *first.ptr == '/';
  if (!divided || std::from_chars(first.ptr + 1, end, launcher).ptr != end) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}={} is no job status; `paceline run` sets it", JobStatus::kVariable, address));
  }
  UniqueFd inherited(::fcntl(descriptor, F_DUPFD_CLOEXEC, 3));
  if (inherited && slots_of(inherited.get()) > 0) return inherited;
  UniqueFd shown(::open(fmt::format("/proc/{}/fd/{}", launcher, descriptor).c_str(), O_RDWR | O_CLOEXEC));
  if (!shown) {
    throw system_error(fmt::format("descriptor {} is not the launcher's job status (what closed it, between the "
                                   "launcher and this program?), nor can /proc/{} be asked for it",
                                   descriptor, launcher),
                       errno);
  }
  // Of another PID namespace, /proc may show another job's.
  std::int32_t owner = 0;
  const auto length = ::pread(shown.get(), &owner, sizeof owner, offsetof(StatusHeader, supervisor));
  if (slots_of(shown.get()) > 0 && (length != sizeof owner || owner != launcher)) {
    throw Error(ErrorCode::System,
                fmt::format("descriptor {} is not the launcher's job status (what closed it, between the launcher and "
                            "this program?), and /proc/{} shows another job's",
                            descriptor, launcher));
  }
  return shown;
}

}  // namespace

JobStatus::JobStatus(const StatusFacts& facts)
    : fd_(::memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING)), slots_(facts.slots) {
  if (!fd_) throw system_error("cannot create the job status (memfd_create)", errno);
  if (slots_ < 1 || slots_ > static_cast<int>(StatusHeader::kMostSlots)) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("a job status has no {} slots", slots_));
  }
  // All of its memory now: none missing later, and, sealed, no process can take it away (SIGBUS).
  int error = 0;
  while ((error = ::posix_fallocate(fd_.get(), 0, static_cast<off_t>(bytes_for(slots_)))) == EINTR) continue;
  if (error != 0)
    throw system_error(fmt::format("cannot get {} KiB for the job status", bytes_for(slots_) >> 10), error);
  if (::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw system_error("cannot seal the job status", errno);
  }
  map(PROT_READ | PROT_WRITE);
  header_->slots = static_cast<std::uint32_t>(slots_);
  header_->world_size = facts.world_size;
  header_->supervisor = ::getpid();
  header_->launcher = facts.launcher;
  header_->started = now().count();
  put(header_->job, facts.job);
  put(header_->host, host_name());
  put(header_->program, facts.program);
  for (int slot = 0; slot < slots_; ++slot) header_->workers[slot].rank = facts.first_rank + slot;
  header_->magic = StatusHeader::kMagic;
}

JobStatus::JobStatus(const std::string& address, int slot) : JobStatus(open_address(address)) {
  if (slot < 0 || slot >= slots_) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("the job status has no slot {}; is LOCAL_RANK right?", slot));
  }
  if (::mprotect(first_slot_ + slot, sizeof(StatusSlot), PROT_READ | PROT_WRITE) != 0) {
    throw system_error("cannot write to the job status", errno);
  }
}

JobStatus::JobStatus(UniqueFd fd) : fd_(std::move(fd)), slots_(slots_of(fd_.get())) {
  if (slots_ == 0) throw Error(ErrorCode::Corrupt, "this is no job status, or of another version of paceline");
  map(PROT_READ);
}

JobStatus::~JobStatus() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

void JobStatus::map(int protection) {
  bytes_ = bytes_for(slots_);
  void* const at = ::mmap(nullptr, bytes_, protection, MAP_SHARED, fd_.get(), 0);
  if (at == MAP_FAILED) throw system_error("cannot map the job status", errno);
  memory_ = static_cast<std::byte*>(at);
  header_ = reinterpret_cast<StatusHeader*>(memory_);
  first_slot_ = reinterpret_cast<StatusSlot*>(memory_ + sizeof(StatusHeader));
}

std::string JobStatus::address() const { return fmt::format("{}/{}", fd_.get(), ::getpid()); }

void JobStatus::started(int slot, pid_t pid) { header_->workers[slot].pid.store(pid, std::memory_order_release); }

void JobStatus::ended(int slot) { header_->workers[slot].ended.store(1, std::memory_order_release); }

void JobStatus::fail(const Error& cause) {
  StatusFailure& failure = header_->failure;
  if (failure.set.load(std::memory_order_relaxed) != 0) return;
  failure.fault = static_cast<std::uint32_t>(cause.fault());
  failure.rank = cause.peer();
  failure.at = now().count();
  put(failure.message, cause.message());
  failure.set.store(1, std::memory_order_release);
}

void JobStatus::check(int rank, const std::string& what) const {
  if (!failed()) return;
  const StatusFailure& failure = header_->failure;
  const double later = seconds(now() - Nanoseconds(failure.at));
  throw Error(static_cast<Fault>(failure.fault),
              fmt::format("{}. Rank {} saw it {:.2f} s later in {}", failure.message, rank, later, what), rank,
              failure.rank, failure.rank == rank ? Cause::First : Cause::Consequence);
}

void JobStatus::await_failure(int rank, const std::string& what) const {
  const Deadline patience(header_->world_size > slots_ ? kLaunchersTake : kLauncherTakes);
  while (!failed() && !patience.passed()) {
    const timespec moment{0, 500'000};
    ::nanosleep(&moment, nullptr);
  }
  check(rank, what);
}

}  // namespace paceline
