// What a launcher makes of what it sees of its workers: silence, no progress, and why one was killed.
#include "paceline/launch/failure/watch.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "paceline/comm/status/status_view.h"
#include "paceline/comm/status/status_writer.h"
#include "paceline/launch/failure/rank_query.h"
#include "paceline/launch/failure/standstill.h"
#include "paceline/launch/memory_cgroup.h"
#include "tests/support/new_job_status.h"
#include "tests/support/temporary_folder.h"

namespace paceline::launch {
namespace {

using namespace std::chrono_literals;
using test::kWorld;
using test::new_job_status;
using test::sum_of;

// ---- The watch, in a time of its own.

struct Watched {
  explicit Watched(int ranks, WatchOptions options = {.silence = 4s, .stuck = 30s})
      : job_status(new_job_status(ranks)), watch(*job_status, options, [this](pid_t) { return state; }) {
    for (int rank = 0; rank < ranks; ++rank) {
      job_status->slot(rank).users = 1;
      job_status->slot(rank).pid = 100 + rank;
    }
  }

  /// Looks every 250 ms for `duration`, while those ranks whose bit is set in `beating` beat; the first news.
  JobWatch::News look_for(Nanoseconds duration, unsigned beating) {
    for (const Nanoseconds end = at + duration; at < end; at += 250ms) {
      for (int rank = 0; rank < job_status->slots(); ++rank) {
        if ((beating >> rank & 1U) != 0) ++job_status->slot(rank).heartbeat;
      }
      JobWatch::News news = watch.look(at);
      if (news.silent || !news.stuck.empty()) return news;
    }
    return {};
  }

  std::shared_ptr<JobStatus> job_status;
  char state = 'S';
  JobWatch watch;
  Nanoseconds at = now();
};

TEST(Watch, ARankWithoutHeartbeatIsSilentAfterFourSecondsAndNotBefore) {
  Watched job(3);
  job.state = 'T';
  job.look_for(1s, 0b111);
  EXPECT_FALSE(job.look_for(3750ms, 0b101).silent);
  const auto news = job.look_for(1s, 0b101);
  ASSERT_TRUE(news.silent);
  EXPECT_EQ(news.silent->slot, 1);
  EXPECT_EQ(news.silent->cause.fault(), Fault::PeerSilent);
  EXPECT_EQ(news.silent->cause.peer(), 1);
  const std::string text = news.silent->cause.message();
  EXPECT_NE(text.find("rank 1 (host "), std::string::npos) << text;
  EXPECT_NE(text.find("pid 101) sent no heartbeat for 4.0 s, before its first operation"), std::string::npos) << text;
  EXPECT_NE(text.find("it is stopped (state T"), std::string::npos) << text;
}

TEST(Watch, SaysWhatTheKernelSaysOfASilentProcess) {
  for (const auto& [state, words] :
       {std::pair{'D', "uninterruptible sleep"}, std::pair{'S', "none of its threads runs"},
        std::pair{'X', "its process has ended"}}) {
    Watched job(1);
    job.state = state;
    const auto news = job.look_for(6s, 0);
    ASSERT_TRUE(news.silent);
    EXPECT_NE(news.silent->cause.message().find(words), std::string::npos) << news.silent->cause.message();
    EXPECT_EQ(news.silent->cause.fault(), state == 'X' ? Fault::PeerDied : Fault::PeerSilent);
  }
}

TEST(Watch, SilenceThatItDidNotObserveDoesNotCount) {
  Watched job(2);
  for (int round = 0; round < 20; ++round) {
    EXPECT_FALSE(job.look_for(3s, 0b01).silent);
    job.at += 20s;  // the whole machine stood still
  }
}

TEST(Watch, ADebuggerMayHoldAWorkerAndZeroMeansNever) {
  Watched traced(1);
  traced.state = 't';
  EXPECT_FALSE(traced.look_for(60s, 0).silent);
  Watched never(1, {.silence = 0s, .stuck = 30s});
  never.state = 'T';
  EXPECT_FALSE(never.look_for(60s, 0).silent);
}

TEST(Watch, WhoSendsNoHeartbeatsOrHasEndedIsNotSilent) {
  Watched job(2);
  job.job_status->slot(0).users = 0;
  job.job_status->ended(1);
  EXPECT_FALSE(job.look_for(60s, 0).silent);
}

TEST(Watch, ARankThatComputesForAMinuteIsNamedOnceAndFailsNothing) {
  Watched job(3);
  std::vector<std::unique_ptr<StatusWriter>> writers;
  std::vector<std::uint64_t> entered;
  for (int rank = 0; rank < 3; ++rank) {
    writers.push_back(std::make_unique<StatusWriter>(job.job_status, rank));
    writers.back()->set_step(17);
    writers.back()->complete(writers.back()->enter(sum_of(8), 41, kWorld), 8);
    if (rank != 0) entered.push_back(writers.back()->enter(sum_of(8), 42, kWorld));
  }
  EXPECT_TRUE(job.look_for(30s, 0b111).stuck.empty());
  const auto news = job.look_for(1s, 0b111);
  EXPECT_FALSE(news.silent);
  EXPECT_NE(news.stuck.find("[E412 STUCK] no progress for 30 s"), std::string::npos) << news.stuck;
  EXPECT_NE(news.stuck.find("root suspect: rank 0 is at #41, user code after all_reduce #41 (float32 x 8, sum), last "
                            "seen "),
            std::string::npos)
      << news.stuck;
  EXPECT_NE(news.stuck.find("while ranks 1-2 wait in #42"), std::string::npos) << news.stuck;
  EXPECT_TRUE(job.watch.waits_in_vain(1h));
  EXPECT_TRUE(job.look_for(120s, 0b111).stuck.empty());
  // It comes; at the next time that it does not, it is named again.
  for (int rank : {1, 2}) {
    auto& writer = *writers[static_cast<std::size_t>(rank)];
    writer.complete(entered[static_cast<std::size_t>(rank - 1)], 8);
    writer.enter(sum_of(8), 43, kWorld);
  }
  EXPECT_TRUE(job.look_for(29s, 0b111).stuck.empty());
  EXPECT_FALSE(job.look_for(3s, 0b111).stuck.empty());
}

TEST(Watch, RanksInDifferentCommunicatorsAreBothNamed) {
  Watched job(3);
  const std::string names[] = {"world", "world", "world/0.0"};
  std::vector<std::unique_ptr<StatusWriter>> writers;
  for (int rank = 0; rank < 3; ++rank) {
    writers.push_back(std::make_unique<StatusWriter>(job.job_status, rank));
    writers.back()->enter({.kind = Collective::Barrier}, 5, status_name(names[rank]));
  }
  const auto text = root_suspect(views_of(*job.job_status, now()), now());
  EXPECT_NE(text.find("rank 2 in barrier #5 of 'world/0.0' since "), std::string::npos) << text;
  EXPECT_NE(text.find("while ranks 0-1 wait in #5"), std::string::npos) << text;
}

TEST(Watch, WhereAllOfThisHostWaitItSaysSo) {
  Watched job(2);
  StatusWriter first(job.job_status, 0), second(job.job_status, 1);
  first.enter({.kind = Collective::Barrier}, 5, kWorld);
  second.enter({.kind = Collective::Barrier}, 5, kWorld);
  const auto text = root_suspect(views_of(*job.job_status, now()), now());
  EXPECT_NE(text.find("none on this host: ranks 0-1 wait in #5"), std::string::npos) << text;
}

TEST(Watch, AJobOfOneHostHasNoRanksOfOthers) {
  Watched job(2);
  StatusWriter first(job.job_status, 0), second(job.job_status, 1);
  first.enter({.kind = Collective::Barrier}, 5, kWorld);
  second.enter({.kind = Collective::Barrier}, 5, kWorld);
  const std::string text = job.look_for(31s, 0b11).stuck;
  EXPECT_EQ(text.find("other hosts"), std::string::npos) << text;
  EXPECT_NE(text.find("none: ranks 0-1 wait in #5; what some have sent does not reach"), std::string::npos) << text;
}

TEST(Watch, RanksThatJoinAreSaidToJoin) {
  Watched job(2);
  StatusWriter first(job.job_status, 0), second(job.job_status, 1);
  first.enter_join(kWorld);
  EXPECT_NE(root_suspect(views_of(*job.job_status, now()), now(), true).find("while rank 0 waits to join 'world'"),
            std::string::npos);
  second.enter_join(kWorld);
  const auto text = root_suspect(views_of(*job.job_status, now()), now(), true);
  EXPECT_NE(text.find("none: ranks 0-1 wait to join 'world', but do not find each other"), std::string::npos) << text;
}

// ---- Ranks that wait for each other.

/// Ranks in a job status, of which a test says what they do.
struct Ranks {
  explicit Ranks(int n) : job_status(new_job_status(n)) {
    for (int rank = 0; rank < n; ++rank) writers.push_back(std::make_unique<StatusWriter>(job_status, rank));
  }
  /// The rank enters operation `number` of the communicator, of so many ranks, and waits in it.
  std::uint64_t enter(int rank, const std::string& name, int members, std::uint64_t number) {
    const auto [at, is_new] = names.try_emplace({rank, name});
    if (is_new) at->second = writer(rank).join(name, members);
    return writer(rank).enter({.kind = Collective::Barrier}, number, at->second);
  }
  StatusWriter& writer(int rank) { return *writers[static_cast<std::size_t>(rank)]; }
  std::optional<std::string> after(Nanoseconds waited) const {
    const Nanoseconds at = now() + waited;
    return standstill(views_of(*job_status, at), at, JobWatch::kStandstill);
  }

  std::shared_ptr<JobStatus> job_status;
  std::vector<std::unique_ptr<StatusWriter>> writers;
  std::map<std::pair<int, std::string>, StatusName> names;
};

TEST(Standstill, RanksThatWaitForEachOtherAreNamedAfterAWhile) {
  Ranks ranks(3);
  ranks.enter(0, "world", 3, 7);
  ranks.enter(1, "model", 3, 40);
  ranks.enter(2, "model", 3, 40);
  EXPECT_FALSE(ranks.after(4s));
  const auto why = ranks.after(6s);
  ASSERT_TRUE(why);
  EXPECT_NE(why->find("rank 0 waits in barrier #7, ranks 1-2 wait in barrier #40 of 'model'"), std::string::npos)
      << *why;
}

TEST(Standstill, ARankThatHasNotJoinedACommunicatorYetIsWaitedForInVain) {
  Ranks ranks(2);
  ranks.enter(0, "world", 2, 7);
  ranks.writer(1).enter_join(ranks.writer(1).join("evaluation", 2));
  EXPECT_TRUE(ranks.after(6s));
}

TEST(Standstill, ThereIsNoneWhileARankComputes) {
  Ranks ranks(2);
  ranks.enter(0, "world", 2, 7);
  EXPECT_FALSE(ranks.after(600s));
  ranks.writer(1).complete(ranks.enter(1, "model", 2, 3), 8);
  EXPECT_FALSE(ranks.after(600s));
}

TEST(Standstill, ThereIsNoneWhileAllAreInTheSameOperation) {
  Ranks ranks(2);
  ranks.enter(0, "world", 2, 7);
  ranks.enter(1, "world", 2, 7);
  EXPECT_FALSE(ranks.after(600s));
}

TEST(Standstill, ThereIsNoneWhileOneGroupHasAllOfItsRanks) {
  Ranks ranks(3);
  ranks.enter(0, "pair", 2, 1);
  ranks.enter(1, "pair", 2, 1);
  ranks.enter(2, "world", 3, 9);  // the pair comes when it has done its own
  EXPECT_FALSE(ranks.after(600s));
}

TEST(Standstill, ThereIsNoneWhileARankHasStartedWhatTheOtherWaitsIn) {
  Ranks ranks(2);
  ranks.writer(0).go_on(ranks.enter(0, "model", 2, 5));
  for (std::uint64_t number = 1; number < 30; ++number) {  // longer ago than the list goes back
    ranks.writer(0).complete(ranks.enter(0, "world", 2, number), 8);
  }
  ranks.enter(0, "world", 2, 30);
  ranks.enter(1, "model", 2, 5);
  EXPECT_FALSE(ranks.after(600s));
}

TEST(Standstill, ThereIsNoneWhereCallsComeFromSeveralThreads) {
  Ranks ranks(2);
  ranks.enter(0, "world", 2, 7);
  ranks.writer(1).complete(ranks.enter(1, "world", 2, 6), 8);
  std::thread([&] { ranks.enter(1, "model", 2, 3); }).join();
  EXPECT_FALSE(ranks.after(600s));
}

TEST(Standstill, ThereIsNoneWhereARankHasMoreCommunicatorsThanItsPage) {
  Ranks ranks(2);
  for (int i = 0; i < 40; ++i) ranks.writer(1).join(std::to_string(i), 2);
  ranks.enter(0, "world", 2, 7);
  ranks.enter(1, "model", 2, 3);
  EXPECT_FALSE(ranks.after(600s));
}

TEST(Standstill, OfSeveralHostsIsSeenFromWhatTheyTellEachOther) {
  Ranks ranks(2);
  ranks.enter(0, "world", 2, 7);
  ranks.enter(1, "model", 2, 3);
  const Nanoseconds at = now() + 40s;
  RankQuery rank_query;
  ASSERT_TRUE(rank_query.begin(30s, 2));
  for (int node = 0; node < 2; ++node) {
    const RankView view = view_of(*ranks.job_status, node, at);
    rank_query.add(node, views_from(to_json({view}, "host", at), now()));
  }
  EXPECT_TRUE(rank_query.take());
  ASSERT_TRUE(rank_query.why_none_goes_on());
}

// ---- Why a worker was killed.

TEST(Memory, AnOutOfMemoryKillIsToldFromTheCounterOfEitherVersion) {
  const auto write = [](const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  };
  struct Case {
    const char *cgroups, *counter, *limit, *limit_value;
  };
  for (const Case& one :
       {Case{"0::/jobs/mine\n", "sys/fs/cgroup/jobs/mine/memory.events", "sys/fs/cgroup/jobs/memory.max", "2147483648"},
        Case{"4:memory:/mine\n0::/\n", "sys/fs/cgroup/memory/mine/memory.oom_control",
             "sys/fs/cgroup/memory/mine/memory.limit_in_bytes", "2147483648"},
        Case{"4:memory:/of/the/host\n", "sys/fs/cgroup/memory/memory.oom_control",
             "sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648"}}) {
    SCOPED_TRACE(one.counter);
    const TemporaryFolder folder;
    write(folder.path / "proc/self/cgroup", one.cgroups);
    write(folder.path / one.counter, "low 0\noom 3\noom_kill 3\n");
    write(folder.path / one.limit, one.limit_value);
    const MemoryGroup group(folder.path);
    EXPECT_EQ(group.evidence(), "");
    write(folder.path / one.counter, "low 0\noom 4\noom_kill 4\n");
    EXPECT_EQ(group.evidence(), "out of memory (the cgroup's oom_kill rose from 3 to 4, limit 2.0 GiB)");
  }
  const TemporaryFolder nothing;
  EXPECT_EQ(MemoryGroup(nothing.path).evidence(), "");
}

}  // namespace
}  // namespace paceline::launch
