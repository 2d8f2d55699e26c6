#pragma once

#include <string>

namespace paceline_benchmark {

/// The worker's end of what a benchmark's driver says to it (workers.py): a Unix socket that keeps messages apart.
/// A worker that waits for one blocks and uses no CPU.
class Channel {
 public:
  /// Throws std::system_error where nobody listens.
  explicit Channel(const std::string& path);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  void send(const std::string& message) const;
  /// Blocks. Throws when the driver has gone away.
  std::string receive() const;

 private:
  int socket_;
};

}  // namespace paceline_benchmark
