// Strangers in numbers, while ranks meet and while they work: none is let in, and the ranks do not mind.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "paceline/net/handshake.h"
#include "paceline/net/tcp_socket.h"
#include "paceline/store/store.h"
#include "tests/support/rank_address.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using test::address_of_rank_0;

struct Strangers {
  int reached = 0;   // somebody listened
  int answered = 0;  // ... and took them for a rank
};

/// One stranger after another, of all sorts: silent ones, some of which stay, junk, and, among so many of them, one
/// that waits to be asked for its proof and gives it under another secret.
Strangers knock(const SocketAddress& address, int how_many, std::mt19937_64& random, std::size_t one_in = 3) {
  Strangers result;
  std::vector<UniqueFd> silent(100);
  for (int i = 0; i < how_many; ++i) {
    std::string why;
    UniqueFd socket = connect_to(address, Deadline(30s), why);
    if (!socket) continue;
    ++result.reached;
    if (random() % one_in != 0) {
      if (random() % 2 == 0) {
        silent[random() % silent.size()] = std::move(socket);
        continue;
      }
      std::vector<std::byte> junk(random() % 3000);
      for (auto& byte : junk) byte = static_cast<std::byte>(random());
      (void)send_all(socket.get(), junk, Deadline(10s));
      continue;
    }
    Handshake stranger(Secret::random());
    Handshake::Challenge challenge;
    if (!receive_all(socket.get(), challenge, Deadline(30s))) continue;
    const auto proof = stranger.prove({.generation = random(), .caller = 1, .acceptor = 0, .world_size = 2}, challenge);
    std::byte answer;
    if (!send_all(socket.get(), *proof, Deadline(10s)) || random() % 2 == 0) continue;
    result.answered += receive_all(socket.get(), std::span(&answer, 1), Deadline(10s)) ? 1 : 0;
  }
  return result;
}

/// The job of one rank: it joins, then adds up until all say that it is enough.
void work(const std::shared_ptr<Store>& store, int rank, const std::atomic<bool>& enough) {
  const Comm comm = Comm::over_tcp(store, "world", rank, 2, {}, {.timeout = 60s});
  std::vector<float> data(1000, 1);
  for (float done = 0; done < 2;) {
    std::fill(data.begin(), data.end(), 1.0F);
    comm.all_reduce<float>(data);
    for (const float x : data) ASSERT_EQ(x, 2);
    done = static_cast<float>(comm.sum(enough ? 1 : 0));
  }
}

class StrangersKnock : public testing::Test {
 protected:
  const std::uint64_t seed = test::seed();
  testing::ScopedTrace trace{__FILE__, __LINE__, "PACELINE_TEST_SEED=" + std::to_string(seed)};
  std::mt19937_64 random{seed};
  const std::shared_ptr<Store> store = make_memory_store();
  std::atomic<bool> enough{false};
};

TEST_F(StrangersKnock, WhileRank0WaitsForTheOthersToStart) {
  std::thread first([&] { EXPECT_NO_THROW(work(store, 0, enough)); });
  const SocketAddress address = address_of_rank_0(*store);
  // Far more than a queue of the kernel's holds, if nobody took them from it.
  const Strangers strangers = knock(address, 3000, random, 50);
  EXPECT_EQ(strangers.reached, 3000);
  EXPECT_EQ(strangers.answered, 0);
  enough = true;
  EXPECT_NO_THROW(work(store, 1, enough));
  first.join();
}

// From several threads, without a pause, until both ranks work.
TEST_F(StrangersKnock, WithoutAPauseWhileRanksMeet) {
  std::atomic<bool> met{false};
  std::atomic<int> answered{0}, reached{0};
  std::thread first([&] { EXPECT_NO_THROW(work(store, 0, enough)); });
  const SocketAddress address = address_of_rank_0(*store);
  std::vector<std::thread> crowd;
  for (int i = 0; i < 4; ++i) {
    crowd.emplace_back([&, seed = random()] {
      std::mt19937_64 own(seed);
      while (!met) {
        const Strangers strangers = knock(address, 20, own);
        answered += strangers.answered;
        reached += strangers.reached;
      }
    });
  }
  while (reached < 500) std::this_thread::yield();
  std::thread second([&] { EXPECT_NO_THROW(work(store, 1, enough)); });
  // Once nobody listens any more, both have met.
  std::string why;
  while (connect_to(address, Deadline(30s), why)) std::this_thread::yield();
  met = enough = true;
  first.join();
  second.join();
  for (std::thread& thread : crowd) thread.join();
  EXPECT_EQ(answered, 0);
}

TEST_F(StrangersKnock, AtAJobThatWorksAndFindNobody) {
  std::thread first([&] { EXPECT_NO_THROW(work(store, 0, enough)); });
  std::thread second([&] { EXPECT_NO_THROW(work(store, 1, enough)); });
  const SocketAddress address = address_of_rank_0(*store);
  std::string why;
  while (connect_to(address, Deadline(30s), why)) std::this_thread::yield();
  EXPECT_EQ(knock(address, 11'000, random).reached, 0);
  enough = true;
  first.join();
  second.join();
}

}  // namespace
}  // namespace paceline
