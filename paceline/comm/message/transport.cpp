#include "paceline/comm/message/transport.h"

#include <fmt/format.h>

#include <limits>

namespace paceline {

std::optional<std::string> wrong_with(const Call& call) {
  if (auto wrong = wrong_with(call.signature)) return wrong;
  if (!(call.weight >= 0 && call.weight <= std::numeric_limits<double>::max())) {
    return fmt::format("a weight of {}", call.weight);
  }
  const Signature& signature = call.signature;
  const std::uint64_t size = size_of(signature.dtype);
  if (call.message_bytes > PTRDIFF_MAX || call.message_bytes % size != 0) {
    return fmt::format("a message of {} bytes", call.message_bytes);
  }
  if (signature.parts != 0) return std::nullopt;  // what its reach and its messages are, ranks agree on in another way
  if (call.reach > signature.count || (call.reach == 0 && signature.count != 0)) {
    return fmt::format("operands that hold {} of {} elements", call.reach, signature.count);
  }
  if (call.message_bytes != 0 && call.message_bytes != call.reach * size) {
    return fmt::format("a message of {} bytes, where operands hold {}", call.message_bytes, call.reach * size);
  }
  return std::nullopt;
}

}  // namespace paceline
