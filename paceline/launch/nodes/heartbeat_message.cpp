#include "paceline/launch/nodes/heartbeat_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "paceline/base/bounded_json.h"
#include "paceline/base/error.h"

namespace paceline::launch {
namespace {

constexpr std::size_t kLengthBytes = 4;
constexpr char kBeat = 'B', kMessage = 'M';
constexpr std::size_t kBeatBytes = 16;
constexpr std::size_t kDeepest = 16;

// Hosts of one job are all little endian (docs/wire_format.md).
template <class Value>
void put(std::string& out, Value value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string frame(char kind, const std::string& rest) {
  std::string out;
  put(out, static_cast<std::uint32_t>(rest.size() + 1));
  out.push_back(kind);
  return out.append(rest);
}

nlohmann::json parse(const char* begin, const char* end);

}  // namespace

std::string encode_beat(const Beat& beat) {
  std::string rest;
  put(rest, beat.count);
  put(rest, beat.heard);
  return frame(kBeat, rest);
}

std::string encode_control(const nlohmann::json& message) {
  // Output of workers and paths may be no UTF-8.
  const std::string rest = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (rest.size() + 1 > kMaxControlFrame) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("a message of {} bytes between launchers", rest.size()));
  }
  return frame(kMessage, rest);
}

std::optional<ControlFrame> take_control(std::string& bytes) {
  if (bytes.size() < kLengthBytes) return std::nullopt;
  std::uint32_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length < 1 || length > kMaxControlFrame) {
    throw Error(ErrorCode::Corrupt, fmt::format("a launcher's frame says it is {} bytes long", length));
  }
  if (bytes.size() < kLengthBytes + length) return std::nullopt;
  const char kind = bytes[kLengthBytes];
  const char* const begin = bytes.data() + kLengthBytes + 1;
  const std::size_t size = length - 1;
  ControlFrame result;
  if (kind == kBeat && size == kBeatBytes) {
    Beat beat;
    std::memcpy(&beat.count, begin, sizeof beat.count);
    std::memcpy(&beat.heard, begin + sizeof beat.count, sizeof beat.heard);
    result = beat;
  } else if (kind == kMessage) {
    result = parse(begin, begin + size);
  } else {
    throw Error(ErrorCode::Corrupt, "a launcher's frame is of an unknown kind");
  }
  bytes.erase(0, kLengthBytes + length);
  return result;
}

int int_at(const nlohmann::json& message, const char* name) {
  const nlohmann::json& member = message.at(name);
  if (member.is_number_integer()) {
    const auto value = member.get<std::int64_t>();
    if (value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max()) {
      return static_cast<int>(value);
    }
  }
  throw Error(ErrorCode::Corrupt, fmt::format("a launcher's message has a \"{}\" that is no whole number", name));
}

namespace {

nlohmann::json parse(const char* begin, const char* end) {
  try {
    auto message = parse_bounded_json({begin, end}, kDeepest);
    if (message.is_object() && message.contains("kind") && message["kind"].is_string()) return message;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::Corrupt, fmt::format("a launcher's message cannot be read: {}", error.what()));
  }
  throw Error(ErrorCode::Corrupt, "a launcher's message has no kind");
}

}  // namespace
}  // namespace paceline::launch
