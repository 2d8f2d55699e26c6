#include "paceline/launch/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "paceline/base/stack_frames.h"

namespace paceline::launch {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::size_t kLastLines = 8;
constexpr std::size_t kLastLineBytes = 400;
constexpr int kLauncher = -2;  // as a source of lines
constexpr std::array kColours = {36, 33, 32, 35, 34, 96, 93, 92};

std::string tag_of(int rank, bool coloured) {
  if (!coloured) return fmt::format("[rank {}] ", rank);
  return fmt::format("\033[{}m[rank {}]\033[0m ", kColours[rank % kColours.size()], rank);
}

bool wants_colour() {
  const char* no_colour = std::getenv("NO_COLOR");
  return no_colour == nullptr || *no_colour == '\0';
}

}  // namespace

JobOutput::JobOutput(bool tag)
    : tag_(tag),
      shared_(OutputSink::same_file(STDOUT_FILENO, STDERR_FILENO)),
      out_(STDOUT_FILENO),
      err_(STDERR_FILENO) {}

void JobOutput::add_worker(UniqueFd out, UniqueFd err, int first_rank) {
  const int rank = first_rank + static_cast<int>(workers_.size());
  workers_.push_back(streams_.size());
  for (UniqueFd* pipe : {&out, &err}) {
    const bool coloured = sink_of(streams_.size()).terminal() && wants_colour();
    streams_.push_back({.pipe = std::move(*pipe), .tag = tag_ ? tag_of(rank, coloured) : ""});
  }
}

void JobOutput::add_launcher(UniqueFd out, UniqueFd err) {
  launchers_.push_back(streams_.size());
  streams_.push_back({.pipe = std::move(out), .tag = ""});
  streams_.push_back({.pipe = std::move(err), .tag = ""});
}

void JobOutput::add_polled(std::vector<pollfd>& polled) {
  polled_from_ = polled.size();
  polled_streams_.clear();
  for (const OutputSink* sink : {&out_, &err_}) {
    polled.push_back({sink->wants_to_write() ? sink->fd() : -1, POLLOUT, 0});
  }
  for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
    if (!streams_[stream].pipe || sink_of(stream).full()) continue;
    polled.push_back({streams_[stream].pipe.get(), POLLIN, 0});
    polled_streams_.push_back(stream);
  }
}

void JobOutput::handle_polled(const std::vector<pollfd>& polled) {
  if (polled[polled_from_].revents != 0) out_.flush();
  if (polled[polled_from_ + 1].revents != 0) err_.flush();
  for (std::size_t i = 0; i < polled_streams_.size(); ++i) {
    if (polled[polled_from_ + 2 + i].revents != 0) read(polled_streams_[i]);
  }
}

void JobOutput::drain_workers() {
  for (const std::size_t first : workers_) drain(first), drain(first + 1);
}

void JobOutput::drain_launchers() {
  for (const std::size_t first : launchers_) drain(first), drain(first + 1);
}

void JobOutput::drain(std::size_t stream) {
  while (streams_[stream].pipe && read(stream)) continue;
  finish(stream);
}

void JobOutput::print(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  sink_of(1).take(kLauncher, "", text, PieceEnd::Newline);
}

/// False when nothing is there.
bool JobOutput::read(std::size_t stream) {
  std::array<char, kReadBytes> bytes;
  const ssize_t count = ::read(streams_[stream].pipe.get(), bytes.data(), bytes.size());
  if (count < 0) return errno == EINTR;  // EAGAIN; a pipe has no other error
  if (count == 0) {
    finish(stream);
    return false;
  }
  streams_[stream].splitter.feed({bytes.data(), static_cast<std::size_t>(count)},
                                 [&](std::string_view piece, PieceEnd end) { take(stream, piece, end); });
  return true;
}

void JobOutput::take(std::size_t stream, std::string_view piece, PieceEnd end) {
  // With tags each line stands alone. Without, a single program's output comes out byte for byte.
  if (end == PieceEnd::Unfinished && tag_) end = PieceEnd::Newline;
  sink_of(stream).take(static_cast<int>(stream), streams_[stream].tag, piece, end);
  if (stream % 2 == 0 || end == PieceEnd::Return) return;
  // A trace of thirty frames would leave no place for what it is about.
  bool& in_trace = streams_[stream].in_trace;
  in_trace = is_stack_frame(piece) || (in_trace && piece.empty());
  if (in_trace) return;
  std::deque<std::string>& last = streams_[stream].last_lines;
  last.emplace_back(piece.substr(0, kLastLineBytes)).append(piece.size() > kLastLineBytes ? "..." : "");
  if (last.size() > kLastLines) last.pop_front();
}

void JobOutput::finish(std::size_t stream) {
  streams_[stream].splitter.finish([&](std::string_view piece, PieceEnd end) { take(stream, piece, end); });
  streams_[stream].pipe.reset();
  sink_of(stream).end_live(static_cast<int>(stream));
}

}  // namespace paceline::launch
