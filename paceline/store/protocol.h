#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace paceline {

/// What store clients and the server say to each other. A client sends one request and reads one reply.
enum class StoreOp : std::uint8_t {
  // Requests.
  Set = 1,   ///< key, value. Reply: Done.
  Get = 2,   ///< key; number: how many ms to wait for it. Reply: Found or TimedOut.
  Add = 3,   ///< key; number: what to add. Reply: Done with the sum as its number.
  Fail = 4,  ///< number: rank, and the Cause above its 32 bits; key: code; value: message. Reply: Done.
  // Replies.
  Done = 16,      ///< number
  Found = 17,     ///< value
  TimedOut = 18,  ///< nothing
  Failed = 19,    ///< The job's first failure, as in Fail. Answers any request but Fail.
  Refused = 20,   ///< value: why the store does not do it.
};

struct StoreMessage {
  StoreOp op{};
  std::int64_t number = 0;
  std::string key = {};
  std::string value = {};
};

/// The largest frame, its length field not counted.
inline constexpr std::size_t kMaxStoreFrame = std::size_t{1} << 20;

/// Over TCP, the other side's host is gone when it has not answered for so long. Longer than launchers take to see
/// that, who can say more.
inline constexpr std::chrono::seconds kStoreSilence{10};

/// One frame, integers little-endian: u32 length of the rest, u8 op, i64 number, u32 key length, key, value.
/// Throws InvalidArgument when the message is larger than a frame may be.
std::string encode(const StoreMessage& message);

/// Takes the first frame off the front of `bytes`; nothing while it is incomplete. Throws Corrupt for bytes that are no
/// frame, and then no later byte of the stream means anything.
std::optional<StoreMessage> take_message(std::string& bytes);

}  // namespace paceline
