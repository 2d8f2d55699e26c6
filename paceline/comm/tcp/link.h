#pragma once

#include <string>
#include <vector>

#include "paceline/base/unique_fd.h"
#include "paceline/comm/tcp/frame.h"

namespace paceline {

/// The connection to one peer: frames out and in, without ever blocking. Sends from where data lies, and receives
/// segments where they go. Everything that arrives is checked before it is handed on.
class TcpLink {
 public:
  enum class Event {
    Nothing,   ///< The socket gives or takes nothing now.
    Moved,     ///< Some bytes moved.
    Complete,  ///< What was asked for is done.
    Left,      ///< The peer said that it leaves.
    Lost,      ///< The connection has ended.
  };

  /// No connection.
  TcpLink() = default;
  TcpLink(UniqueFd socket, int rank, int peer, std::uint64_t generation, std::size_t eager_bytes);

  int fd() const { return socket_.get(); }

  /// Begins to send a frame; the one before is out. `payload` stays until push() says Complete.
  void send(FrameKind kind, const Call& call, std::span<const std::byte> payload);
  bool sending() const { return header_sent_ + payload_sent_ < sizeof(FrameHeader) + payload_.size(); }
  Event push();

  /// Begins to receive a call. What eager_payload() gave of the one before is gone.
  void expect_call();
  bool has_call() const { return has_call_; }
  /// Throws Corrupt, as pull_segment() does.
  Event pull_call();
  const Call& call() const { return call_; }
  std::span<const std::byte> eager_payload() const { return eager_payload_; }

  /// Receives a segment of exactly this size. Called with the same memory until it says Complete.
  Event pull_segment(std::span<std::byte> to);

  /// True if a Leave is what comes next.
  bool has_left();
  /// Ends the connection in both directions; a wait in poll() ends. From any thread.
  void shut_down() noexcept;

 private:
  void take_header(std::span<const std::byte, sizeof(FrameHeader)> bytes, std::size_t payload_limit);
  void check_payload(std::uint32_t crc) const;
  [[noreturn]] void corrupt(const std::string& what) const;
  std::size_t buffered() const { return end_ - begin_; }
  void compact();
  /// Bytes read, or 0 with `event` set.
  std::size_t receive(std::span<std::byte> first, std::span<std::byte> second, Event& event);

  UniqueFd socket_;
  int rank_ = -1, peer_ = -1;
  std::size_t eager_bytes_ = 0;

  FrameStream outgoing_, incoming_;
  FrameHeader out_header_{};
  std::span<const std::byte> payload_;
  std::size_t header_sent_ = sizeof(FrameHeader), payload_sent_ = 0;

  FrameHeader header_{};
  Call call_{};  // the last
  bool has_header_ = false, has_call_ = false;
  std::span<const std::byte> eager_payload_;
  std::size_t received_ = 0;  // of a segment's payload
  std::uint32_t received_crc_ = 0;
  std::vector<std::byte> buffer_;  // calls, and what came along with them, in [begin_, end_)
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace paceline
