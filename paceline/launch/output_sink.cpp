#include "paceline/launch/output_sink.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>

namespace paceline::launch {
namespace {

/// The longest part of `text` that fits into `columns`. Colour codes take no column, UTF-8 characters one.
std::string_view fit(std::string_view text, std::size_t columns) {
  std::size_t used = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      while (i + 1 < text.size() && text[i] != 'm' && text[i] != 'K') ++i;
      continue;
    }
    const bool continues = (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80;
    if (!continues && ++used > columns) return text.substr(0, i);
  }
  return text;
}

std::size_t columns_of(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

}  // namespace

OutputSink::OutputSink(int fd) : fd_(fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    error_ = errno;
    return;
  }
  if (S_ISSOCK(info.st_mode)) kind_ = Kind::Socket;
  if (S_ISFIFO(info.st_mode)) kind_ = Kind::Stream;
  if (::isatty(fd) == 1) {
    kind_ = Kind::Stream;
    const char* term = std::getenv("TERM");
    terminal_ = term == nullptr || std::string_view(term) != "dumb";
    own_.reset(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  }
}

bool OutputSink::same_file(int a, int b) {
  struct stat first {
  }, second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

void OutputSink::take(int source, std::string_view tag, std::string_view piece, PieceEnd end) {
  if (error_ != 0) return;
  if (end == PieceEnd::Return) {
    const bool covered = live_source_ != kNone && live_source_ < source;
    if (!terminal_ || covered || piece.empty()) return;
    live_source_ = source;
    live_.assign(tag).append(piece);
    live_stale_ = true;
    return;
  }
  erase_live();
  if (open_source_ != source) {
    if (open_source_ != kNone) {
      if (open_is_cut_) {
        pending_ += " [cut: it goes on below]";
        cut_.insert(open_source_);
      }
      pending_ += '\n';
    }
    pending_ += tag;
    if (cut_.erase(source) != 0) pending_ += "[goes on] ";
  }
  pending_ += piece;
  if (live_source_ == source) end_live(source);  // the line stands where the live one was
  const bool ends = end == PieceEnd::Newline;
  if (ends) pending_ += '\n';
  open_source_ = ends ? kNone : source;
  open_is_cut_ = end == PieceEnd::Cut;
}

void OutputSink::end_live(int source) {
  if (live_source_ != source) return;
  live_source_ = kNone;
  erase_live();
  live_.clear();
  live_stale_ = false;
}

void OutputSink::flush() {
  if (pending_.empty() && live_stale_) draw_live();
  std::string_view rest = pending_;
  while (!rest.empty() && error_ == 0) {
    const ssize_t written = write_some(rest);
    if (written >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      error_ = errno;
      rest = {};
    }
  }
  pending_.erase(0, pending_.size() - rest.size());
}

void OutputSink::erase_live() {
  if (live_shown_) pending_ += "\r\033[K";
  live_shown_ = false;
  live_stale_ = !live_.empty();
}

void OutputSink::draw_live() {
  live_stale_ = false;
  if (open_source_ != kNone) return;  // until that line is finished
  const std::string_view shown = fit(live_, columns_of(fd()) - 1);
  pending_ += live_shown_ ? "\r\033[K" : "";
  pending_.append(shown);
  if (shown.size() < live_.size() && shown.find('\033') != std::string_view::npos) pending_ += "\033[0m";
  live_shown_ = true;
}

ssize_t OutputSink::write_some(std::string_view bytes) const {
  if (kind_ == Kind::Socket) return ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (kind_ == Kind::Plain || own_) return ::write(fd(), bytes.data(), bytes.size());
  // A pipe that is ready takes as much as this without blocking.
  pollfd polled{fd_, POLLOUT, 0};
  const int ready = ::poll(&polled, 1, 0);
  if (ready > 0) return ::write(fd_, bytes.data(), std::min<std::size_t>(bytes.size(), PIPE_BUF));
  if (ready == 0) errno = EAGAIN;
  return -1;
}

}  // namespace paceline::launch
