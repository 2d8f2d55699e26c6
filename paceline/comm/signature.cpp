#include "paceline/comm/signature.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
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

// Field by field, where it will be read from: a copy would wait for the fields to leave the store buffer.
void sign(const Operation& operation, std::uint64_t number, Signature& signature) {
  signature.number = number;
  signature.count = operation.count;
  signature.call_count = operation.call_count != 0 ? operation.call_count : operation.count;
  signature.parts = 0;
  signature.kind = operation.kind;
  signature.dtype = operation.dtype;
  signature.reduce = operation.reduce;
  signature.algorithm = operation.algorithm;
  signature.in_place = operation.kind == Collective::AllToAll && operation.counts.empty() && operation.count > 0 &&
                       operation.in == operation.out;
  signature.started = operation.started;
  signature.root = static_cast<std::int16_t>(operation.root);
  std::memset(signature.label, 0, sizeof signature.label);
  if (!operation.counts.empty()) describe_parts(operation, signature);
  if (operation.label[0] == '\0') return;
  const std::size_t length = std::strlen(operation.label);
  std::memcpy(signature.label, operation.label, std::min(length, sizeof signature.label - 1));
}

std::optional<std::string> wrong_with(const Signature& signature) {
  const auto number_of = [](auto value) { return static_cast<int>(value); };
  if (signature.number == 0) return "an operation without a number";
  if (signature.kind > Collective::AllToAll) return fmt::format("an unknown kind {}", number_of(signature.kind));
  if (signature.dtype > Dtype::UInt8) return fmt::format("an unknown element type {}", number_of(signature.dtype));
  if (signature.reduce > ReduceOp::Max) return fmt::format("an unknown reduction {}", number_of(signature.reduce));
  if (signature.algorithm > Algorithm::Hierarchical) {
    return fmt::format("an unknown algorithm {}", number_of(signature.algorithm));
  }
  if (signature.in_place > 1) return fmt::format("in_place={}", signature.in_place);
  if (signature.started > 1) return fmt::format("started={}", signature.started);
  if (has_root(signature.kind) && signature.root < 0) return fmt::format("a root {}", signature.root);
  const std::uint64_t most = PTRDIFF_MAX / size_of(signature.dtype);
  for (const std::uint64_t count : {signature.count, signature.call_count}) {
    if (count > most) return fmt::format("{} elements, which are more than memory can hold", count);
  }
  if (signature.parts != 0 && signature.count != 0) return "uneven parts and a count";
  const auto* const end = std::find(std::begin(signature.label), std::end(signature.label), '\0');
  if (end == std::end(signature.label)) return "a label without an end";
  if (std::any_of(end, std::end(signature.label), [](char c) { return c != '\0'; })) {
    return "a label with something behind it";
  }
  return std::nullopt;
}

// The halves of a product, added up; as wyhash does it.
static std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a ^ 0x9E3779B97F4A7C15) * (b ^ 0xD1B54A32D192ED03);
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t digest_of(const Signature& signature) {
  const auto shifted = [](auto field, int bits) { return static_cast<std::uint64_t>(field) << bits; };
  const std::uint64_t what = shifted(signature.kind, 0) | shifted(signature.dtype, 8) | shifted(signature.reduce, 16) |
                             shifted(signature.algorithm, 24) | shifted(signature.in_place, 32) |
                             shifted(signature.started, 40) | shifted(static_cast<std::uint16_t>(signature.root), 48);
  std::uint64_t digest = mix(mix(signature.number, signature.count), mix(what, signature.call_count));
  if (signature.parts != 0) digest = mix(digest, signature.parts);
  if (signature.label[0] != '\0') {
    std::uint64_t words[3];
    std::memcpy(words, signature.label, sizeof words);
    digest = mix(mix(digest, words[0]), mix(words[1], words[2]));
  }
  return digest;
}

std::uint64_t balance_of(const Operation& operation, int rank) {
  if (operation.kind != Collective::AllToAll || operation.counts.empty()) return 0;
  const auto pair = [](std::size_t from, std::size_t to, std::size_t count) { return mix(mix(from, to), count); };
  const auto own = static_cast<std::size_t>(rank);
  std::uint64_t balance = 0;
  for (std::size_t peer = 0; peer < operation.counts.size(); ++peer) {
    balance += pair(own, peer, operation.counts[peer]);
    balance -= pair(peer, own, operation.receive_counts[peer]);
  }
  return balance;
}

static std::string_view label_of(const Signature& signature) {
  return {signature.label, ::strnlen(signature.label, sizeof signature.label)};
}

std::string describe(const Signature& signature) {
  std::string text = fmt::format("{} #{}", to_string(signature.kind), signature.number);
  if (signature.label[0] != '\0') text += fmt::format(" '{}'", label_of(signature));
  if (signature.kind == Collective::Barrier) return text;
  const bool own_parts = signature.parts != 0 && signature.kind == Collective::AllToAll;
  const std::string count = own_parts ? "uneven parts" : std::to_string(signature.call_count);
  text += fmt::format(" ({} x {}", to_string(signature.dtype), count);
  if (signature.parts > 1) text += fmt::format(" in uneven parts {:04x}", signature.parts & 0xFFFF);
  if (reduces(signature.kind)) text += fmt::format(", {}", to_string(signature.reduce));
  if (has_root(signature.kind)) text += fmt::format(", root {}", signature.root);
  if (signature.in_place != 0) text += ", in place";
  if (signature.started != 0) text += ", started";
  if (signature.algorithm != Algorithm::Auto) text += fmt::format(", {}", to_string(signature.algorithm));
  return text + ")";
}

static bool in_backward(const Signature& signature) {
  const std::string_view label = label_of(signature);
  return label.starts_with("step ") || label.starts_with("bucket ");
}

Error mismatch(int rank, const Signature& first, int peer, const Signature& theirs) {
  return Error(
      ErrorCode::Mismatch,
      fmt::format(
          "rank 0 calls {}, but rank {} calls {}. No data was combined; all ranks must make the same "
          "calls in the same order{}",
          describe(first), peer, describe(theirs),
          in_backward(first) || in_backward(theirs)
              ? " ('step' and 'bucket' are backward(): do all ranks train the same model, and call it equally often?)"
              : ""),
      rank, peer);
}

}  // namespace paceline
