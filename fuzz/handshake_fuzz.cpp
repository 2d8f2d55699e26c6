// The handshake on both sides, without its secret: nothing is let in, and nothing but what was proved is believed.
#include "fuzz.h"
#include "paceline/net/handshake.h"

using namespace paceline;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Secret secret = Secret::random(), other = Secret::random();
  fuzz::Input input(data, size);
  const auto fill = [&](auto& bytes) {
    bytes = {};
    const auto given = input.bytes(bytes.size());
    std::memcpy(bytes.data(), given.data(), given.size());
  };
  const auto mode = input.number<std::uint8_t>();
  Handshake::Challenge challenge;
  Handshake::Proof proof;
  Handshake::Answer answer;

  // A proof, and an answer, of somebody who does not know it.
  Handshake acceptor(secret);
  const auto asked = acceptor.challenge();
  fill(proof);
  FUZZ_CHECK(!acceptor.accept(proof));
  (void)acceptor.answer(proof);
  fill(answer);
  Handshake caller(secret);
  FUZZ_CHECK(!caller.confirm(answer));

  // A challenge of anybody: either no challenge, or answered for nobody else's.
  fill(challenge);
  const Introduction who{.generation = input.number<std::uint64_t>(),
                         .caller = input.number<std::uint32_t>(),
                         .acceptor = input.number<std::uint32_t>(),
                         .world_size = input.number<std::uint32_t>()};
  if (const auto proved = caller.prove(who, challenge)) FUZZ_CHECK(!acceptor.accept(*proved));

  // What does know it, with at most one byte changed.
  auto good = caller.prove(who, asked);
  FUZZ_CHECK(good.has_value());
  FUZZ_CHECK(acceptor.accept(*good) == who);
  const auto change = static_cast<std::byte>(mode);
  (*good)[input.number<std::uint8_t>() % good->size()] ^= change;
  FUZZ_CHECK(acceptor.accept(*good).has_value() == (change == std::byte{0}));
  Handshake stranger(other);
  FUZZ_CHECK(!acceptor.accept(*stranger.prove(who, asked)));
  return 0;
}
