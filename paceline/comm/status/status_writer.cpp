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

void note_exits(std::shared_ptr<Board> board, BoardSlot& slot);

}  // namespace

BoardName board_name(std::string_view name) {
  BoardName result;
  std::memcpy(result.words.data(), name.data(), std::min(name.size(), sizeof result.words - 1));
  return result;
}

BoardWriter::BoardWriter(std::shared_ptr<Board> board, int slot)
    : board_(std::move(board)), slot_(board_->slot(slot)), last_(0) {
  // Goes on behind what an earlier communicator of this process has left.
  for (const BoardOperation& operation : slot_.operations) last_ = std::max(last_.load(), operation.sequence.load());
  const std::int64_t pid = ::getpid();
  if (slot_.pid.exchange(pid) != pid) {
    // Of a process that a script has started before this one. What it left behind waits for nobody.
    slot_.users = 0;
    slot_.exited = 0;
    slot_.unclear = 0;
    for (BoardCommunicator& communicator : slot_.communicators) communicator.name = 0;
    note_exits(board_, slot_);
  }
  slot_.beat_at = now().count();
  beat_->thread = background_thread([this] { beat(); });
  slot_.users.fetch_add(1);
}

BoardWriter::~BoardWriter() {
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

BoardName BoardWriter::join(std::string_view name, int members) {
  const std::uint64_t id = std::max<std::uint64_t>(hash_of(name), 1);
  BoardName result = board_name(name);
  const auto& all = slot_.communicators;
  const auto is = [](std::uint64_t value) {
    return [value](const BoardCommunicator& one) { return one.name.load() == value; };
  };
  const auto* const free = std::find_if(std::begin(all), std::end(all), is(0));
  if (free == std::end(all) || std::any_of(std::begin(all), std::end(all), is(id))) {
    slot_.unclear = 1;
    return result;
  }
  result.place = static_cast<std::size_t>(free - std::begin(all));
  BoardCommunicator& own = slot_.communicators[result.place];
  own.members = static_cast<std::uint64_t>(members);
  own.entered = 0;
  own.name = id;
  return result;
}

void BoardWriter::leave(const BoardName& communicator) {
  if (!origin_.here() || communicator.place >= BoardSlot::kCommunicators) return;
  slot_.communicators[communicator.place].name = 0;
}

std::uint64_t BoardWriter::wait_for(std::uint64_t sequence, std::uint64_t number, const BoardName& communicator) {
  if (entry(sequence).sequence.load(std::memory_order_relaxed) != sequence) {
    return put(BoardOperation::kUnknown, 0, number, communicator, "");
  }
  set(sequence, &BoardOperation::waits_from, clock());
  return sequence;
}

void BoardWriter::beat() {
  ::pthread_setname_np(::pthread_self(), "paceline-beat");
  std::unique_lock lock(beat_->mutex);
  do {
    slot_.beat_at.store(now().count(), std::memory_order_relaxed);
    slot_.heartbeat.fetch_add(1, std::memory_order_release);
  } while (!beat_->stop.wait_for(lock, kBeat, [&] { return beat_->stopping; }));
}

namespace {

struct ExitNote {
  std::shared_ptr<Board> board;
  BoardSlot& slot;
  pid_t pid;
};

void note_exit(int code, void* at) {
  const std::unique_ptr<ExitNote> note(static_cast<ExitNote*>(at));
  if (::getpid() == note->pid) note->slot.exited = BoardSlot::kExited + static_cast<std::uint32_t>(code & 0xff);
}

/// exit() does not destroy what is on the stack: this tells it from a crash within a communicator. A script may hide
/// how the process ended from the launcher.
void note_exits(std::shared_ptr<Board> board, BoardSlot& slot) {
  auto note = std::make_unique<ExitNote>(ExitNote{std::move(board), slot, ::getpid()});
  if (::on_exit(note_exit, note.get()) == 0) (void)note.release();  // it is the handler's
}

}  // namespace
}  // namespace paceline
