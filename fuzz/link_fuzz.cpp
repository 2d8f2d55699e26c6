// TcpLink: what a peer sends after the handshake, in whatever pieces, into calls and segments. The peer is a socket
// pair. Frames whose checksums are due are made of the input, so that the link gets past them.
#include <sys/socket.h>

#include <vector>

#include "fuzz.h"
#include "paceline/base/crc32c.h"
#include "paceline/comm/tcp/link.h"

using namespace paceline;

namespace {

constexpr std::size_t kEagerBytes = 256;

/// Half of the inputs as they are; the others cut into frames with good checksums.
std::string stream_of(fuzz::Input& input) {
  if (input.number<std::uint8_t>() % 2 == 0) return std::string(input.rest());
  std::string bytes;
  for (std::uint64_t index = 0; !input.empty(); ++index) {
    const auto flags = input.number<std::uint8_t>();
    FrameStream stream{.sender = 1, .generation = 7, .next_index = index};
    Call call{};
    const auto of_call = input.bytes(flags & 1 ? sizeof call : 0);
    const auto payload = input.bytes(input.number<std::uint16_t>() % 600);
    // Other calls are such as a rank might make, so that the link gets past what it checks of them.
    sign({.kind = Collective::AllReduce, .count = payload.size()}, 1, call.signature);
    call.reach = call.message_bytes = payload.size();
    if (!of_call.empty()) std::memcpy(reinterpret_cast<char*>(&call), of_call.data(), of_call.size());
    FrameHeader header =
        make_frame(stream, static_cast<FrameKind>(1 + (flags >> 1) % 4), call, fuzz::as_bytes(payload));
    if (flags & 64) header.payload_bytes = input.number<std::uint64_t>();
    if (flags & 128) header.payload_crc ^= 1;
    header.header_crc = crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, header_crc)));
    bytes.append(reinterpret_cast<const char*>(&header), sizeof header).append(payload);
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 4096) return 0;  // as much as the socket takes at once
  fuzz::Input input(data, size);
  const auto plan = input.number<std::uint32_t>();  // call or segment, bit by bit, and how long segments are
  const std::string bytes = stream_of(input);
  int ends[2];
  FUZZ_CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  UniqueFd peer(ends[1]);
  TcpLink link(UniqueFd(ends[0]), 0, 1, 7, kEagerBytes);
  const std::size_t cut = bytes.empty() ? 0 : plan % bytes.size();
  const auto send = [&](std::string_view part) {
    FUZZ_CHECK(::send(peer.get(), part.data(), part.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(part.size()));
  };
  std::vector<std::byte> segment;
  fuzz::accepts(ErrorCode::Corrupt, [&] {
    if (cut > 0) send(std::string_view(bytes).substr(0, cut));
    for (int turn = 0, fed = 0; turn < 64; ++turn) {
      const bool is_call = (plan >> (turn % 32) & 1) != 0;
      if (is_call) link.expect_call();
      else segment.assign(1 + (plan >> (turn % 24)) % 300, std::byte{0});
      TcpLink::Event event{};
      while ((event = is_call ? link.pull_call() : link.pull_segment(segment)) != TcpLink::Event::Complete) {
        if (event == TcpLink::Event::Left) FUZZ_CHECK(link.has_left());
        if (event == TcpLink::Event::Left || event == TcpLink::Event::Lost) return;
        if (event == TcpLink::Event::Moved) continue;
        (void)link.has_left();
        if (fed++ == 0) send(std::string_view(bytes).substr(cut));
        else ::shutdown(peer.get(), SHUT_WR);
      }
      if (is_call) FUZZ_CHECK(link.eager_payload().size() <= kEagerBytes && !wrong_with(link.call()));
    }
  });
  return 0;
}
