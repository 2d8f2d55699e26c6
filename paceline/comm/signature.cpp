#include "paceline/comm/signature.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace paceline {

Signature signature_of(const Operation& operation, std::uint64_t number) {
  Signature signature{};
  signature.number = number;
  signature.count = operation.count;
  signature.call_count = operation.call_count != 0 ? operation.call_count : operation.count;
  signature.kind = operation.kind;
  signature.dtype = operation.dtype;
  signature.reduce = operation.reduce;
  signature.root = operation.root;
  const std::size_t length = std::strlen(operation.label);
  std::memcpy(signature.label, operation.label, std::min(length, sizeof signature.label - 1));
  return signature;
}

std::string describe(const Signature& signature) {
  std::string text = fmt::format("{} #{}", to_string(signature.kind), signature.number);
  if (signature.label[0] != '\0') text += fmt::format(" '{}'", signature.label);
  if (signature.kind == Collective::Barrier) return text;
  text += fmt::format(" ({} x {}", to_string(signature.dtype), signature.call_count);
  if (signature.kind == Collective::AllReduce || signature.kind == Collective::ReduceScatter) {
    text += fmt::format(", {}", to_string(signature.reduce));
  }
  if (signature.kind == Collective::Broadcast) text += fmt::format(", root {}", signature.root);
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
