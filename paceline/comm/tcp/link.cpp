#include "paceline/comm/tcp/link.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "paceline/base/crc32c.h"

namespace paceline {
namespace {

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

TcpLink::TcpLink(UniqueFd socket, int rank, int peer, std::uint64_t generation, std::size_t eager_bytes)
    : socket_(std::move(socket)),
      rank_(rank),
      peer_(peer),
      eager_bytes_(eager_bytes),
      outgoing_{.sender = static_cast<std::uint16_t>(rank), .generation = generation},
      incoming_{.sender = static_cast<std::uint16_t>(peer), .generation = generation},
      buffer_(sizeof(FrameHeader) + eager_bytes) {}

void TcpLink::send(FrameKind kind, const Call& call, std::span<const std::byte> payload) {
  out_header_ = make_frame(outgoing_, kind, call, payload);
  payload_ = payload;
  header_sent_ = payload_sent_ = 0;
}

TcpLink::Event TcpLink::push() {
  std::array<iovec, 2> parts{};
  std::size_t count = 0;
  if (header_sent_ < sizeof out_header_) {
    parts[count++] = {reinterpret_cast<std::byte*>(&out_header_) + header_sent_, sizeof out_header_ - header_sent_};
  }
  if (payload_sent_ < payload_.size()) {
    parts[count++] = {const_cast<std::byte*>(payload_.data()) + payload_sent_, payload_.size() - payload_sent_};
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const ssize_t sent = ::sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return would_block(errno) ? Event::Nothing : Event::Lost;
  const std::size_t of_header = std::min(static_cast<std::size_t>(sent), sizeof out_header_ - header_sent_);
  header_sent_ += of_header;
  payload_sent_ += static_cast<std::size_t>(sent) - of_header;
  return sending() ? Event::Moved : Event::Complete;
}

void TcpLink::expect_call() {
  has_call_ = false;
  eager_payload_ = {};
  compact();
}

TcpLink::Event TcpLink::pull_call() {
  bool moved = false;
  for (;;) {
    if (!has_header_ && buffered() >= sizeof(FrameHeader)) {
      take_header(std::span<const std::byte, sizeof(FrameHeader)>(buffer_.data() + begin_, sizeof(FrameHeader)),
                  eager_bytes_);
      if (header_.kind == FrameKind::Leave) return Event::Left;
      if (header_.kind != FrameKind::Call) corrupt("data came where a call was due");
    }
    if (has_header_ && buffered() >= sizeof(FrameHeader) + header_.payload_bytes) {
      eager_payload_ = std::span(buffer_).subspan(begin_ + sizeof(FrameHeader), header_.payload_bytes);
      check_payload(crc32c(eager_payload_));
      begin_ += sizeof(FrameHeader) + eager_payload_.size();
      call_ = header_.call;
      has_header_ = false;
      has_call_ = true;
      return Event::Complete;
    }
    Event event = Event::Nothing;
    const std::size_t bytes = receive(std::span(buffer_).subspan(end_), {}, event);
    if (bytes == 0) return event == Event::Nothing && moved ? Event::Moved : event;
    end_ += bytes;
    moved = true;
  }
}

TcpLink::Event TcpLink::pull_segment(std::span<std::byte> to) {
  bool moved = false;
  for (;;) {
    if (has_header_ && received_ == to.size()) {
      check_payload(received_crc_);
      has_header_ = false;
      received_ = 0;
      received_crc_ = 0;
      return Event::Complete;
    }
    std::size_t came = 0;  // of the payload
    if (!has_header_ && buffered() >= sizeof(FrameHeader)) {
      // It came along with a call.
      take_header(std::span<const std::byte, sizeof(FrameHeader)>(buffer_.data() + begin_, sizeof(FrameHeader)),
                  to.size());
      begin_ += sizeof(FrameHeader);
      came = std::min(buffered(), to.size());
      if (header_.payload_bytes == to.size()) std::memcpy(to.data(), buffer_.data() + begin_, came);
      begin_ += came;
    } else {
      compact();
      const std::size_t missing = has_header_ ? 0 : sizeof(FrameHeader) - buffered();
      Event event = Event::Nothing;
      const std::size_t bytes = receive(std::span(buffer_).subspan(end_, missing), to.subspan(received_), event);
      if (bytes == 0) return event == Event::Nothing && moved ? Event::Moved : event;
      end_ += std::min(bytes, missing);
      came = bytes - std::min(bytes, missing);
      if (missing > 0 && buffered() == sizeof(FrameHeader)) {
        take_header(std::span<const std::byte, sizeof(FrameHeader)>(buffer_.data(), sizeof(FrameHeader)), to.size());
        begin_ = end_ = 0;
      }
    }
    moved = true;
    if (has_header_ && header_.kind == FrameKind::Leave) return Event::Left;
    if (has_header_ && header_.kind != FrameKind::Segment) corrupt("a call came where data were due");
    if (has_header_ && std::memcmp(&header_.call.signature, &call_.signature, sizeof(Signature)) != 0) {
      corrupt("data of another operation came");
    }
    if (has_header_ && header_.payload_bytes != to.size()) {
      corrupt(fmt::format("{} bytes came where {} were due", header_.payload_bytes, to.size()));
    }
    received_crc_ = crc32c(to.subspan(received_, came), received_crc_);
    received_ += came;
  }
}

void TcpLink::take_header(std::span<const std::byte, sizeof(FrameHeader)> bytes, std::size_t payload_limit) {
  if (const auto wrong = read_frame(incoming_, bytes, payload_limit, header_)) corrupt(*wrong);
  has_header_ = true;
}

void TcpLink::check_payload(std::uint32_t crc) const {
  if (crc != header_.payload_crc) corrupt(fmt::format("the checksum of {} bytes is wrong", header_.payload_bytes));
}

void TcpLink::corrupt(const std::string& what) const {
  throw Error(
      ErrorCode::Corrupt,
      fmt::format("what rank {} sent to rank {} arrived damaged: {}. Nothing of it was used; if it comes again, "
                  "look at the network adapters and the memory of both hosts",
                  peer_, rank_, what),
      rank_, peer_);
}

void TcpLink::compact() {
  if (begin_ == 0) return;
  if (begin_ != end_) std::memmove(buffer_.data(), buffer_.data() + begin_, buffered());
  end_ -= begin_;
  begin_ = 0;
}

std::size_t TcpLink::receive(std::span<std::byte> first, std::span<std::byte> second, Event& event) {
  ssize_t bytes = 0;
  if (first.empty() || second.empty()) {
    const std::span<std::byte> only = first.empty() ? second : first;
    bytes = ::recv(fd(), only.data(), only.size(), MSG_DONTWAIT);
  } else {
    std::array<iovec, 2> parts{{{first.data(), first.size()}, {second.data(), second.size()}}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    bytes = ::recvmsg(fd(), &message, MSG_DONTWAIT);
  }
  if (bytes > 0) return static_cast<std::size_t>(bytes);
  event = bytes < 0 && would_block(errno) ? Event::Nothing : Event::Lost;
  return 0;
}

bool TcpLink::has_left() {
  if (has_header_ || received_ > 0) return has_header_ && header_.kind == FrameKind::Leave;
  compact();
  Event event = Event::Moved;
  while (buffered() < sizeof(FrameHeader) && event == Event::Moved) {
    end_ += receive(std::span(buffer_).subspan(end_), {}, event);
  }
  if (buffered() < sizeof(FrameHeader)) return false;
  FrameHeader header{};
  FrameStream stream = incoming_;
  const auto wrong = read_frame(stream, std::span<const std::byte, sizeof(FrameHeader)>(buffer_.data(), sizeof header),
                                eager_bytes_, header);
  return !wrong && header.kind == FrameKind::Leave;
}

void TcpLink::shut_down() noexcept {
  if (socket_) ::shutdown(fd(), SHUT_RDWR);
}

}  // namespace paceline
