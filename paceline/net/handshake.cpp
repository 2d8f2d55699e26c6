#include "paceline/net/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "paceline/base/error.h"
#include "paceline/base/random_bytes.h"

namespace paceline {
namespace {

// Version and purpose; a later protocol has another one.
constexpr std::array<char, 8> kMagic{'P', 'L', 'H', 'E', 'L', 'L', 'O', '1'};
constexpr std::size_t kUnsignedBytes = Handshake::kProofBytes - Handshake::kMacBytes;
static_assert(sizeof(Introduction) == 24);
constexpr std::size_t kIntroductionBytes = 20, kIntroductionEnd = 24;  // zeros between

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

Handshake::Challenge Handshake::challenge() {
  std::memcpy(challenge_.data(), kMagic.data(), kMagic.size());
  random_bytes({challenge_.data() + kMagic.size(), Handshake::kNonceBytes});
  return challenge_;
}

std::optional<Introduction> Handshake::accept(std::span<const std::byte, kProofBytes> proof) const {
  if (!same(mac("caller", proof.first(kUnsignedBytes)), proof.last(kMacBytes))) return std::nullopt;
  constexpr std::array<std::byte, kIntroductionEnd - kIntroductionBytes> kZeros{};
  if (!std::equal(kZeros.begin(), kZeros.end(), proof.begin() + kIntroductionBytes)) return std::nullopt;
  Introduction introduction{};
  std::memcpy(&introduction, proof.data(), kIntroductionBytes);
  return introduction;
}

Handshake::Answer Handshake::answer(std::span<const std::byte, kProofBytes> proof) const {
  return mac("acceptor", proof.first(kUnsignedBytes));
}

std::optional<Handshake::Proof> Handshake::prove(const Introduction& introduction,
                                                 std::span<const std::byte, kChallengeBytes> challenge) {
  if (std::memcmp(challenge.data(), kMagic.data(), kMagic.size()) != 0) return std::nullopt;
  std::copy(challenge.begin(), challenge.end(), challenge_.begin());
  proof_ = {};
  std::memcpy(proof_.data(), &introduction, kIntroductionBytes);
  random_bytes({proof_.data() + kIntroductionEnd, Handshake::kNonceBytes});
  const Answer signature = mac("caller", std::span<const std::byte>(proof_).first(kUnsignedBytes));
  std::copy(signature.begin(), signature.end(), proof_.begin() + kUnsignedBytes);
  return proof_;
}

bool Handshake::confirm(std::span<const std::byte, kAnswerBytes> answer) const {
  return same(mac("acceptor", std::span<const std::byte>(proof_).first(kUnsignedBytes)), answer);
}

Handshake::Answer Handshake::mac(const char* role, std::span<const std::byte> proof_without_mac) const {
  std::array<unsigned char, 16 + kChallengeBytes + kUnsignedBytes> text{};
  std::memcpy(text.data(), role, std::strlen(role));
  std::memcpy(text.data() + 16, challenge_.data(), challenge_.size());
  std::memcpy(text.data() + 16 + challenge_.size(), proof_without_mac.data(), kUnsignedBytes);
  Answer result{};
  unsigned int length = 0;
  if (HMAC(EVP_sha256(), secret_.bytes().data(), static_cast<int>(Secret::kBytes), text.data(), text.size(),
           reinterpret_cast<unsigned char*>(result.data()), &length) == nullptr ||
      length != kMacBytes) {
    throw Error(ErrorCode::System, "OpenSSL cannot compute HMAC-SHA256");
  }
  return result;
}

}  // namespace paceline
