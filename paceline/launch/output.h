#pragma once

#include <poll.h>

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/base/unique_fd.h"
#include "paceline/launch/output_lines.h"
#include "paceline/launch/output_sink.h"

namespace paceline::launch {

/// The output of all workers: reads their pipes and prints whole lines, each with its rank in front. A slow reader of
/// the launcher's output slows the workers down, as it would without the launcher.
class JobOutput {
 public:
  explicit JobOutput(bool tag);

  /// Whether stdout shows live progress lines.
  bool terminal() const { return out_.terminal(); }
  /// Workers are added in the order of their ranks; `first_rank` is that of the first of them.
  void add_worker(UniqueFd out, UniqueFd err, int first_rank = 0);
  /// Another host's launcher. Its lines have their tags already.
  void add_launcher(UniqueFd out, UniqueFd err);

  /// Adds what to poll, and takes the result from the same place.
  void add_polled(std::vector<pollfd>& polled);
  void handle_polled(const std::vector<pollfd>& polled);

  /// Takes all that the workers' pipes hold and closes them. For when no worker is left to write.
  void drain_workers();
  /// The same with those of launchers.
  void drain_launchers();
  /// Prints the launcher's own text, of whole lines, on stderr.
  void print(std::string_view text);
  /// The end of what the worker wrote to stderr.
  const std::deque<std::string>& last_errors(int worker) const { return streams_[workers_[worker] + 1].last_lines; }

  /// Writes what goes without waiting for a reader.
  void flush() { out_.flush(), err_.flush(); }
  bool all_written() const { return !out_.wants_to_write() && !err_.wants_to_write(); }
  /// errno of the write that failed, on stdout or stderr, or 0.
  int write_error() const { return out_.error() != 0 ? out_.error() : err_.error(); }

 private:
  struct Stream {
    UniqueFd pipe;
    std::string tag;
    LineSplitter splitter = {};
    std::deque<std::string> last_lines = {};
    bool in_trace = false;  // its last line was a stack frame
  };

  OutputSink& sink_of(std::size_t stream) { return stream % 2 == 0 || shared_ ? out_ : err_; }
  void drain(std::size_t stream);
  bool read(std::size_t stream);
  void take(std::size_t stream, std::string_view piece, PieceEnd end);
  void finish(std::size_t stream);

  const bool tag_;
  const bool shared_;  // stdout and stderr are one file: one sink, or their lines would get mixed
  OutputSink out_, err_;
  std::vector<Stream> streams_;       // in pairs: stdout, stderr
  std::vector<std::size_t> workers_;  // the first of each one's pair
  std::vector<std::size_t> launchers_;
  std::size_t polled_from_ = 0;
  std::vector<std::size_t> polled_streams_;
};

}  // namespace paceline::launch
