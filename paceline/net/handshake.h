#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "paceline/net/secret.h"

namespace paceline {

/// Who meets whom over a new connection.
struct Introduction {
  std::uint64_t generation;  ///< Of the communicator.
  std::uint32_t caller, acceptor, world_size;
  bool operator==(const Introduction&) const = default;
};

/// How two ranks find out that both know the secret, before anything else is read from a connection. No sockets here.
///
///     acceptor -> caller  challenge: a random number
///     caller -> acceptor  proof: who it is, a random number of its own, and an HMAC-SHA256 of all that
///     acceptor -> caller  answer: another HMAC-SHA256 of all that
///
/// Each HMAC begins with its sender's role, so none can be sent back. All three have a fixed length.
class Handshake {
 public:
  static constexpr std::size_t kNonceBytes = 32, kMacBytes = 32;
  static constexpr std::size_t kChallengeBytes = 8 + kNonceBytes;
  static constexpr std::size_t kProofBytes = 24 + kNonceBytes + kMacBytes;
  static constexpr std::size_t kAnswerBytes = kMacBytes;
  using Challenge = std::array<std::byte, kChallengeBytes>;
  using Proof = std::array<std::byte, kProofBytes>;
  using Answer = std::array<std::byte, kAnswerBytes>;

  explicit Handshake(const Secret& secret) : secret_(secret) {}

  /// The acceptor's side.
  Challenge challenge();
  /// Who is there, if the proof is good.
  std::optional<Introduction> accept(std::span<const std::byte, kProofBytes> proof) const;
  Answer answer(std::span<const std::byte, kProofBytes> proof) const;

  /// The caller's side. Nothing if this is no challenge.
  std::optional<Proof> prove(const Introduction& introduction, std::span<const std::byte, kChallengeBytes> challenge);
  /// True if the acceptor knows the secret too.
  bool confirm(std::span<const std::byte, kAnswerBytes> answer) const;

 private:
  Answer mac(const char* role, std::span<const std::byte> proof_without_mac) const;

  Secret secret_;
  Challenge challenge_{};
  Proof proof_{};
};

}  // namespace paceline
