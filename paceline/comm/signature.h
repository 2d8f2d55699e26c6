#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "paceline/comm/engine.h"

namespace paceline {

/// What ranks must agree on about an operation, as they send it to each other; compared byte by byte.
struct Signature {
  std::uint64_t number;
  std::uint64_t count;
  std::uint64_t call_count;
  std::uint64_t parts;  // a hash of uneven parts; 0 where they are even
  Collective kind;
  Dtype dtype;
  ReduceOp reduce;
  Algorithm algorithm;
  std::uint8_t in_place;  // where ranks cannot differ in it
  std::uint8_t started;
  std::int16_t root;
  char label[24];  // zero-padded; labels are cut to 23 characters
};
static_assert(sizeof(Signature) == 64 && std::is_trivially_copyable_v<Signature>);

void sign(const Operation& operation, std::uint64_t number, Signature& signature);

/// Of a signature of unknown origin: what is wrong with it, as sign() makes none; nothing if it may be a rank's.
std::optional<std::string> wrong_with(const Signature& signature);

/// 64 bits that differ where signatures do (but for one pair in 2^64); made in a few nanoseconds.
std::uint64_t digest_of(const Signature& signature);

/// For an uneven all_to_all, in which ranks agree pair by pair: a number that adds up to 0 over all ranks (but for one
/// disagreement in 2^64) exactly if each sends to each as much as that one expects. 0 for other operations.
std::uint64_t balance_of(const Operation& operation, int rank);

/// As messages name it: "all_reduce #42 'bucket 3' (float32 x 1000, sum)".
std::string describe(const Signature& signature);

/// The Mismatch of two ranks that call different operations under the same number.
Error mismatch(int rank, const Signature& first, int peer, const Signature& theirs);

}  // namespace paceline
