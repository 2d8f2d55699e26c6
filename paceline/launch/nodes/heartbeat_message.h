#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>

namespace paceline::launch {

// What launchers of one job say to each other over a connection on which both have proved the secret: frames of a
// length (4 bytes, little endian, of all that follows), a kind and the rest.

/// "I am there, and this is the last that I heard from you." Sent every kBeatPeriod. A side whose count does not come
/// back is not heard, or does not hear: one of both directions is broken.
struct Beat {
  std::uint64_t count = 0;  ///< Of the sender's beats, from 1.
  std::uint64_t heard = 0;  ///< The last count that it has from the other side; 0 for none.
};

/// Everything else is a JSON object with a "kind"; messages.h knows what they mean.
using ControlFrame = std::variant<Beat, nlohmann::json>;

inline constexpr std::size_t kMaxControlFrame = std::size_t{1} << 20;

std::string encode_beat(const Beat& beat);
/// Throws InvalidArgument for what is over the limit.
std::string encode_control(const nlohmann::json& message);
/// Takes the first frame off `bytes`; nothing if it is not complete. Throws Corrupt for what is none.
std::optional<ControlFrame> take_control(std::string& bytes);

/// A member that is a whole number. Throws nlohmann::json::exception if it is missing, Corrupt if it is something else;
/// get<int>() would take anything for one.
int int_at(const nlohmann::json& message, const char* name);

}  // namespace paceline::launch
