#include "paceline/comm/status/status_writer.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "paceline/base/background.h"
#include "paceline/base/clock.h"
#include "paceline/base/exit_codes.h"
#include "paceline/base/hash.h"

namespace paceline {

namespace {

void note_exits(std::shared_ptr<JobStatus> job_status, StatusSlot& slot);

}  // namespace

StatusName status_name(std::string_view name) {
  StatusName result;
  std::memcpy(result.words.data(), name.data(), std::min(name.size(), sizeof result.words - 1));
  return result;
}

StatusWriter::StatusWriter(std::shared_ptr<JobStatus> job_status, int slot)
    : job_status_(std::move(job_status)), slot_(job_status_->slot(slot)), last_(0) {
  // Goes on behind what an earlier communicator of this process has left.
  for (const StatusOperation& operation : slot_.operations) last_ = std::max(last_.load(), operation.sequence.load());
  const std::int64_t pid = ::getpid();
  if (slot_.pid.exchange(pid) != pid) {
    // Of a process that a script has started before this one. What it left behind waits for nobody.
    slot_.users = 0;
    slot_.exited = 0;
    slot_.unclear = 0;
    for (StatusCommunicator& communicator : slot_.communicators) communicator.name = 0;
    note_exits(job_status_, slot_);
  }
  slot_.beat_at = now().count();
  beat_->thread = background_thread([this] { beat(); });
  slot_.users.fetch_add(1);
}

StatusWriter::~StatusWriter() {
  if (!origin_.here()) {  // the slot is the parent's too
    never_destroy(std::move(beat_));
    return;
  }
  slot_.users.fetch_sub(1);
  {
    const std::lock_guard lock(beat_->mutex);
    beat_->stopping = true;
  }
  beat_->stop.notify_all();
  beat_->thread.join();
}

StatusName StatusWriter::join(std::string_view name, int members) {
  const std::uint64_t id = std::max<std::uint64_t>(hash_of(name), 1);
  StatusName result = status_name(name);
  const auto& all = slot_.communicators;
  const auto is = [](std::uint64_t value) {
    return [value](const StatusCommunicator& one) { return one.name.load() == value; };
  };
  const auto* const free = std::find_if(std::begin(all), std::end(all), is(0));
  if (free == std::end(all) || std::any_of(std::begin(all), std::end(all), is(id))) {
    slot_.unclear = 1;
    return result;
  }
  result.place = static_cast<std::size_t>(free - std::begin(all));
  StatusCommunicator& own = slot_.communicators[result.place];
  own.members = static_cast<std::uint64_t>(members);
  own.entered = 0;
  own.name = id;
  return result;
}

void StatusWriter::leave(const StatusName& communicator) {
  if (!origin_.here() || communicator.place >= StatusSlot::kCommunicators) return;
  slot_.communicators[communicator.place].name = 0;
}

std::uint64_t StatusWriter::wait_for(std::uint64_t sequence, std::uint64_t number, const StatusName& communicator) {
  if (entry(sequence).sequence.load(std::memory_order_relaxed) != sequence) {
    return put(StatusOperation::kUnknown, 0, number, communicator, "");
  }
  set(sequence, &StatusOperation::waits_from, clock());
  return sequence;
}

void StatusWriter::beat() {
  ::pthread_setname_np(::pthread_self(), "paceline-beat");
  std::unique_lock lock(beat_->mutex);
  do {
    slot_.beat_at.store(now().count(), std::memory_order_relaxed);
    slot_.heartbeat.fetch_add(1, std::memory_order_release);
  } while (!beat_->stop.wait_for(lock, kBeat, [&] { return beat_->stopping; }));
}

namespace {

struct ExitNote {
  std::shared_ptr<JobStatus> job_status;
  StatusSlot& slot;
  pid_t pid;
};

void note_exit(int code, void* at) {
  const std::unique_ptr<ExitNote> note(static_cast<ExitNote*>(at));
  if (::getpid() == note->pid) note->slot.exited = StatusSlot::kExited + static_cast<std::uint32_t>(code & 0xff);
}

/// exit() does not destroy what is on the stack: this tells it from a crash within a communicator. A script may hide
/// how the process ended from the launcher.
void note_exits(std::shared_ptr<JobStatus> job_status, StatusSlot& slot) {
  auto note = std::make_unique<ExitNote>(ExitNote{std::move(job_status), slot, ::getpid()});
  if (::on_exit(note_exit, note.get()) == 0) (void)note.release();  // it is the handler's
}

}  // namespace
}  // namespace paceline
