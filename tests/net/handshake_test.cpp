// Who is let in: only whoever knows the secret, says who it is, and says it now.
#include "paceline/net/handshake.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "paceline/base/error.h"

namespace paceline {
namespace {

const std::string kHex = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";
constexpr Introduction kWho{.generation = 9, .caller = 2, .acceptor = 1, .world_size = 4};

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.message().find(kHex.substr(0, 10)), std::string::npos) << "the secret was printed";
    return error.code();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

TEST(Handshake, LetsBothSidesKnowEachOther) {
  const Secret secret = Secret::random();
  Handshake acceptor(secret), caller(secret);
  const auto proof = caller.prove(kWho, acceptor.challenge());
  ASSERT_TRUE(proof);
  EXPECT_EQ(acceptor.accept(*proof), kWho);
  EXPECT_TRUE(caller.confirm(acceptor.answer(*proof)));
}

TEST(Handshake, RefusesAnotherSecretOnEitherSide) {
  const Secret ours = Secret::random(), theirs = Secret::random();
  Handshake acceptor(ours), caller(theirs);
  const auto proof = caller.prove(kWho, acceptor.challenge());
  ASSERT_TRUE(proof);
  EXPECT_FALSE(acceptor.accept(*proof));
  EXPECT_FALSE(caller.confirm(acceptor.answer(*proof)));
}

TEST(Handshake, RefusesAnythingChangedOnTheWay) {
  const Secret secret = Secret::random();
  Handshake acceptor(secret), caller(secret);
  const auto challenge = acceptor.challenge();
  const auto proof = caller.prove(kWho, challenge);
  ASSERT_TRUE(proof);
  for (std::size_t bit = 0; bit < 8 * Handshake::kProofBytes; ++bit) {
    auto changed = *proof;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(acceptor.accept(changed)) << bit;
  }
  auto answer = acceptor.answer(*proof);
  answer[7] ^= std::byte{1};
  EXPECT_FALSE(caller.confirm(answer));
  auto other = challenge;
  other[20] ^= std::byte{1};
  const auto to_other = Handshake(secret).prove(kWho, other);
  ASSERT_TRUE(to_other);
  EXPECT_FALSE(acceptor.accept(*to_other)) << "the challenge was another one";
  other = challenge;
  other[0] ^= std::byte{1};
  EXPECT_FALSE(Handshake(secret).prove(kWho, other)) << "no challenge of this protocol";
}

TEST(Handshake, RefusesWhatWasSaidBeforeOrByItself) {
  const Secret secret = Secret::random();
  Handshake acceptor(secret), caller(secret);
  const auto proof = caller.prove(kWho, acceptor.challenge());
  ASSERT_TRUE(proof);
  ASSERT_TRUE(acceptor.accept(*proof));
  acceptor.challenge();
  EXPECT_FALSE(acceptor.accept(*proof)) << "a replay";
  Handshake::Answer reflected;
  std::copy(proof->end() - Handshake::kMacBytes, proof->end(), reflected.begin());
  EXPECT_FALSE(caller.confirm(reflected));
}

TEST(Secret, IsReadFromDigitsAndNothingElse) {
  EXPECT_EQ(Secret::from_hex(" " + kHex + "\n").bytes()[31], 0x1f);
  EXPECT_EQ(Secret::from_hex(Secret::random().hex()).hex().size(), 64u);
  EXPECT_NE(Secret::random().hex(), Secret::random().hex());
  for (const std::string& bad :
       {std::string(), kHex.substr(1), kHex + "0", "0x" + kHex.substr(2), "-1" + kHex.substr(2), "g0" + kHex.substr(2),
        kHex.substr(0, 32) + " " + kHex.substr(33)}) {
    EXPECT_EQ(code_of([&] { (void)Secret::from_hex(bad); }), ErrorCode::InvalidArgument) << bad;
  }
}

TEST(Secret, IsReadFromAFileThatNobodyElseMayUse) {
  const auto path = std::filesystem::temp_directory_path() / ("paceline-secret-" + std::to_string(::getpid()));
  std::ofstream(path) << kHex << "\n";
  ::chmod(path.c_str(), 0644);
  EXPECT_EQ(code_of([&] { (void)Secret::from_file(path); }), ErrorCode::InvalidArgument);
  ::chmod(path.c_str(), 0600);
  EXPECT_EQ(Secret::from_file(path).bytes()[2], 2);
  std::filesystem::remove(path);
  EXPECT_EQ(code_of([&] { (void)Secret::from_file(path); }), ErrorCode::System);
}

}  // namespace
}  // namespace paceline
