#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

#include "paceline/base/unique_fd.h"
#include "paceline/launch/output_lines.h"

namespace paceline::launch {

/// The launcher's stdout or stderr: takes pieces of lines from many sources, keeps lines whole, shows one live progress
/// line on a terminal, and never blocks.
class OutputSink {
 public:
  explicit OutputSink(int fd);

  bool terminal() const { return terminal_; }
  /// Whether both descriptors lead to the same file, so that one sink has to serve both.
  static bool same_file(int a, int b);

  /// Takes one piece. `tag` goes in front of a line's first piece. A line that was cut, since it is too long to be
  /// held, says so where another source's comes in between, and says that it goes on where it does. A live line is
  /// shown on a terminal and dropped elsewhere; if there are several, that of the lowest source is shown.
  void take(int source, std::string_view tag, std::string_view piece, PieceEnd end);
  /// Forgets the source's live line.
  void end_live(int source);

  /// Whether there is something to write, when poll() says that fd() takes it.
  bool wants_to_write() const { return error_ == 0 && (!pending_.empty() || live_stale_); }
  /// Whether it has taken more than it should hold; sources wait meanwhile.
  bool full() const { return pending_.size() >= kFullBytes; }
  int fd() const { return own_ ? own_.get() : fd_; }
  /// Writes what goes without blocking.
  void flush();
  /// errno of the write that failed, or 0. After a failure everything is dropped.
  int error() const { return error_; }

 private:
  static constexpr std::size_t kFullBytes = std::size_t{256} << 10;
  static constexpr int kNone = -1;
  enum class Kind { Plain, Stream, Socket };

  void erase_live();
  void draw_live();
  ssize_t write_some(std::string_view bytes) const;

  int fd_;
  UniqueFd own_;  // a terminal opened anew, since O_NONBLOCK on fd_ would also hit the user's shell
  Kind kind_ = Kind::Plain;
  bool terminal_ = false;
  int error_ = 0;
  std::string pending_;
  int open_source_ = kNone;  // whose line stands unfinished at the end of the output
  bool open_is_cut_ = false;
  std::set<int> cut_;  // sources whose line was left at a cut, for another source's
  int live_source_ = kNone;
  std::string live_;
  bool live_shown_ = false;  // it is on the terminal, with the cursor behind it
  bool live_stale_ = false;  // what the terminal shows is not live_
};

}  // namespace paceline::launch
