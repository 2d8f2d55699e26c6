#include "paceline/comm/signature.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "paceline/base/hash.h"

namespace paceline {

// What one rank sends in an uneven all_to_all is its own affair; that it is uneven is not.
static void describe_parts(const Operation& operation, Signature& signature) {
  const bool agreed = operation.kind != Collective::AllToAll;
  signature.count = 0;
  signature.parts = agreed ? hash_of(std::as_bytes(operation.counts)) | 1 : 1;
  signature.call_count = 0;
  for (std::size_t part = 0; agreed && part < operation.counts.size(); ++part) {
    signature.call_count += operation.counts[part];
  }
}

Signature signature_of(const Operation& operation, std::uint64_t number) {
  Signature signature{};
  signature.number = number;
  signature.count = operation.count;
  signature.call_count = operation.call_count != 0 ? operation.call_count : operation.count;
  if (!operation.counts.empty()) describe_parts(operation, signature);
  signature.kind = operation.kind;
  signature.dtype = operation.dtype;
  signature.reduce = operation.reduce;
  signature.algorithm = operation.algorithm;
  signature.in_place = operation.kind == Collective::AllToAll && operation.in == operation.out;
  signature.root = static_cast<std::int16_t>(operation.root);
  const std::size_t length = std::strlen(operation.label);
  std::memcpy(signature.label, operation.label, std::min(length, sizeof signature.label - 1));
  return signature;
}

std::string describe(const Signature& signature) {
  std::string text = fmt::format("{} #{}", to_string(signature.kind), signature.number);
  if (signature.label[0] != '\0') text += fmt::format(" '{}'", signature.label);
  if (signature.kind == Collective::Barrier) return text;
  const bool own_parts = signature.parts != 0 && signature.kind == Collective::AllToAll;
  const std::string count = own_parts ? "uneven parts" : std::to_string(signature.call_count);
  text += fmt::format(" ({} x {}", to_string(signature.dtype), count);
  if (signature.parts > 1) text += fmt::format(" in uneven parts {:04x}", signature.parts & 0xFFFF);
  if (reduces(signature.kind)) text += fmt::format(", {}", to_string(signature.reduce));
  if (has_root(signature.kind)) text += fmt::format(", root {}", signature.root);
  if (signature.in_place != 0) text += ", in place";
  if (signature.algorithm != Algorithm::Auto) text += fmt::format(", {}", to_string(signature.algorithm));
  return text + ")";
}

static bool in_backward(const Signature& signature) {
  const std::string_view label(signature.label);
  return label.starts_with("step ") || label.starts_with("bucket ");
}

Error mismatch(int rank, const Signature& first, int peer, const Signature& theirs) {
  return Error(ErrorCode::Mismatch,
               fmt::format("rank 0 calls {}, but rank {} calls {}. No data was combined; all ranks must make the same "
                           "calls in the same order{}",
                           describe(first), peer, describe(theirs),
                           in_backward(first) || in_backward(theirs) ? " ('step' and 'bucket' are backward())" : ""),
               rank, peer);
}

}  // namespace paceline
