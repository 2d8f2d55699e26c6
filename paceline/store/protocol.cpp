#include "paceline/store/protocol.h"

#include <fmt/format.h>

#include <string_view>

#include "paceline/base/error.h"

namespace paceline {
namespace {

constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kFixedBytes = 1 + 8 + 4;  // op, number, key length

template <class Unsigned>
void put(std::string& out, Unsigned value) {
  for (std::size_t i = 0; i < sizeof(value); ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

template <class Unsigned>
Unsigned read(std::string_view bytes, std::size_t at) {
  Unsigned value = 0;
  for (std::size_t i = 0; i < sizeof(value); ++i) {
    value |= static_cast<Unsigned>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  }
  return value;
}

bool is_op(std::uint8_t op) {
  return (op >= static_cast<std::uint8_t>(StoreOp::Set) && op <= static_cast<std::uint8_t>(StoreOp::Fail)) ||
         (op >= static_cast<std::uint8_t>(StoreOp::Done) && op <= static_cast<std::uint8_t>(StoreOp::Refused));
}

}  // namespace

std::string encode(const StoreMessage& message) {
  const std::size_t length = kFixedBytes + message.key.size() + message.value.size();
  if (length > kMaxStoreFrame) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a store message of {} bytes is over the limit of {}; the store "
                            "is for addresses and numbers",
                            length, kMaxStoreFrame));
  }
  std::string out;
  out.reserve(kLengthBytes + length);
  put(out, static_cast<std::uint32_t>(length));
  out.push_back(static_cast<char>(message.op));
  put(out, static_cast<std::uint64_t>(message.number));
  put(out, static_cast<std::uint32_t>(message.key.size()));
  return out.append(message.key).append(message.value);
}

std::optional<StoreMessage> take_message(std::string& bytes) {
  if (bytes.size() < kLengthBytes) return std::nullopt;
  const std::size_t length = read<std::uint32_t>(bytes, 0);
  if (length < kFixedBytes || length > kMaxStoreFrame) {
    throw Error(ErrorCode::Corrupt, fmt::format("a store frame says it is {} bytes long", length));
  }
  if (bytes.size() < kLengthBytes + length) return std::nullopt;

  const std::string_view frame = std::string_view(bytes).substr(kLengthBytes, length);
  const auto op = static_cast<std::uint8_t>(frame[0]);
  if (!is_op(op)) throw Error(ErrorCode::Corrupt, fmt::format("a store frame has the unknown operation {}", op));
  const std::size_t key_length = read<std::uint32_t>(frame, 9);
  if (key_length > length - kFixedBytes) {
    throw Error(ErrorCode::Corrupt, fmt::format("a store frame of {} bytes has a key of {} bytes", length, key_length));
  }
  StoreMessage message{.op = static_cast<StoreOp>(op),
                       .number = static_cast<std::int64_t>(read<std::uint64_t>(frame, 1)),
                       .key = std::string(frame.substr(kFixedBytes, key_length)),
                       .value = std::string(frame.substr(kFixedBytes + key_length))};
  bytes.erase(0, kLengthBytes + length);
  return message;
}

}  // namespace paceline
