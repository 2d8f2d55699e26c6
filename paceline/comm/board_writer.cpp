#include "paceline/comm/board_writer.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "paceline/base/background.h"
#include "paceline/base/clock.h"

namespace paceline {

BoardName board_name(std::string_view name) {
  BoardName words{};
  std::memcpy(words.data(), name.data(), std::min(name.size(), sizeof words - 1));
  return words;
}

BoardWriter::BoardWriter(std::shared_ptr<Board> board, int slot)
    : board_(std::move(board)), slot_(board_->slot(slot)), last_(0) {
  // Goes on behind what an earlier communicator of this process has left.
  for (const BoardOperation& operation : slot_.operations) last_ = std::max(last_.load(), operation.sequence.load());
  slot_.pid = ::getpid();
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

}  // namespace paceline
