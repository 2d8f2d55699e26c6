// The parts of a launcher over several hosts that need no other host: what launchers say, when silence counts, command
// lines for shells, and who holds a port.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "paceline/base/error.h"
#include "paceline/launch/failure/job_record.h"
#include "paceline/launch/failure/rank_query.h"
#include "paceline/launch/failure/silence.h"
#include "paceline/launch/nodes/control_channel.h"
#include "paceline/launch/nodes/heartbeat_message.h"
#include "paceline/launch/nodes/join_request.h"
#include "paceline/launch/nodes/messages.h"
#include "paceline/launch/port_holder.h"
#include "paceline/launch/shell.h"
#include "paceline/net/connect_authenticated.h"
#include "paceline/net/tcp_socket.h"
#include "tests/support/world.h"

namespace paceline::launch {
namespace {

using namespace std::chrono_literals;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Silence, CountsFromWhatWasLastHeard) {
  Silence silence(0s);
  EXPECT_EQ(silence.look(500ms), 500ms);
  silence.heard(700ms);
  EXPECT_EQ(silence.look(1s), 300ms);
  for (Nanoseconds at = 1500ms; at <= 5s; at += 500ms) EXPECT_EQ(silence.look(at), at - 700ms);
}

TEST(Silence, ALookThatComesLateStartsAnew) {
  Silence silence(0s);
  for (Nanoseconds at = 0s; at <= 3s; at += 500ms) silence.look(at);
  EXPECT_EQ(silence.look(60s), 0s) << "this process was stopped, so it could not have heard anything";
  EXPECT_EQ(silence.look(60s + 500ms), 500ms);
  EXPECT_EQ(silence.look(60s + 500ms + Silence::kLate), 500ms + Silence::kLate) << "not late yet";
}

TEST(ControlFrames, ComeBackFromAnySplit) {
  const nlohmann::json message = {{"kind", "say"}, {"text", "ä\n\x01"}, {"list", {1, 2.5, nullptr}}};
  const std::string bytes = encode_beat({.count = 7, .heard = 6}) + encode_control(message);
  for (std::size_t split = 0; split <= bytes.size(); ++split) {
    std::string buffer = bytes.substr(0, split);
    std::vector<ControlFrame> frames;
    while (auto frame = take_control(buffer)) frames.push_back(std::move(*frame));
    buffer += bytes.substr(split);
    while (auto frame = take_control(buffer)) frames.push_back(std::move(*frame));
    ASSERT_EQ(frames.size(), 2u);
    EXPECT_EQ(std::get<Beat>(frames[0]).count, 7u);
    EXPECT_EQ(std::get<Beat>(frames[0]).heard, 6u);
    EXPECT_EQ(std::get<nlohmann::json>(frames[1]), message);
    EXPECT_TRUE(buffer.empty());
  }
}

TEST(ControlFrames, BytesThatAreNoUtf8AreSentAllTheSame) {
  std::string bytes = encode_control({{"kind", "finished"}, {"line", "\xff\xfe"}});
  EXPECT_TRUE(take_control(bytes));
}

TEST(ControlFrames, RandomAndDamagedBytesAreCorruptOrNothing) {
  const std::uint64_t seed = test::seed();
  SCOPED_TRACE(fmt::format("PACELINE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  const std::string good = encode_control({{"kind", "end"}, {"rank", 3}, {"deep", {{"a", {{"b", {1, 2}}}}}}});
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    if (round % 2 == 0) {
      bytes.resize(random() % 64);
      for (char& byte : bytes) byte = static_cast<char>(random());
      if (bytes.size() > 4) bytes.replace(0, 4, std::string("\x10\0\0\0", 4));
    } else {
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    }
    try {
      take_control(bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Corrupt);
    }
  }
  std::string deep = "M" + std::string(100'000, '[');
  const auto length = static_cast<std::uint32_t>(deep.size());
  deep.insert(0, reinterpret_cast<const char*>(&length), 4);
  EXPECT_THROW(take_control(deep), Error);
}

TEST(Messages, LastErrorsOfManyRanksStayWithinTheLimit) {
  LastErrors errors;
  for (int rank = 0; rank < 1024; ++rank) errors[rank] = std::deque<std::string>(8, std::string(400, '\x01'));
  std::string bytes = encode_control(to_json(errors));
  const LastErrors back = errors_from(std::get<nlohmann::json>(*take_control(bytes)));
  ASSERT_EQ(back.size(), 1024u);
  EXPECT_EQ(back.at(1023), std::deque<std::string>{std::string(128, '\x01')});
}

TEST(Messages, AWorkersEndComesBack) {
  const WorkerEnd end{.rank = 3,
                      .status = 9,
                      .after = 1500ms,
                      .stopped = true,
                      .out_of_memory = "out of memory",
                      .silence = Error(Fault::PeerSilent, "rank 3 is silent"),
                      .host = "b",
                      .pid = 4711,
                      .last_known = "after barrier #1"};
  const WorkerEnd back = end_from(to_json(end));
  EXPECT_EQ(back.rank, 3);
  EXPECT_EQ(back.status, 9);
  EXPECT_EQ(back.after, 1500ms);
  EXPECT_TRUE(back.stopped);
  EXPECT_EQ(back.out_of_memory, "out of memory");
  EXPECT_EQ(back.silence->message(), "rank 3 is silent");
  EXPECT_EQ(back.silence->fault(), Fault::PeerSilent);
  EXPECT_EQ(back.host, "b");
  EXPECT_EQ(back.pid, 4711);
  EXPECT_EQ(back.last_known, "after barrier #1");
  const JobOutcome job_outcome{.text = "t", .exit_code = 69, .signal = 2, .rank = 4, .fault = Fault::ConnectionLost};
  const JobOutcome told = outcome_from(to_json("leave", job_outcome));
  EXPECT_EQ(told.text, "t");
  EXPECT_EQ(told.exit_code, 69);
  EXPECT_EQ(told.signal, 2);
  EXPECT_EQ(told.rank, 4);
  EXPECT_EQ(told.fault, Fault::ConnectionLost);
  const LastErrors errors{{3, {"one", "two"}}, {5, {}}};
  EXPECT_EQ(errors_from(to_json(errors)), errors);
  for (const nlohmann::json& rank : {nlohmann::json("three"), nlohmann::json(3.5), nlohmann::json(1e300),
                                     nlohmann::json(5'000'000'000), nlohmann::json(), nlohmann::json::array()}) {
    nlohmann::json message = to_json(end);
    message["rank"] = rank;
    EXPECT_THROW(end_from(message), Error) << rank;
  }
  EXPECT_THROW(end_from({{"kind", "end"}}), nlohmann::json::exception);
}

TEST(Messages, OnlySignalsThatAreForWorkersArePassedOn) {
  const UserSignal back = signal_from(to_json(UserSignal{.number = SIGUSR2, .node = 3}));
  EXPECT_EQ(back.number, SIGUSR2);
  EXPECT_EQ(back.node, 3);
  EXPECT_THROW(signal_from({{"kind", "signal"}, {"signal", "SIGKILL"}, {"node", 1}}), Error);
  EXPECT_THROW(signal_from({{"kind", "signal"}, {"signal", 9}, {"node", 1}}), nlohmann::json::exception);
  EXPECT_THROW(signal_from({{"kind", "signal"}, {"signal", "SIGUSR1"}}), nlohmann::json::exception);
}

TEST(UserSignalsTest, OneThatComesToAllLaunchersAtOnceIsOne) {
  UserSignals signals;
  EXPECT_TRUE(signals.is_new({.number = SIGUSR1, .node = 1}, 10s));
  EXPECT_FALSE(signals.is_new({.number = SIGUSR1, .node = 0}, 10s + 20ms));
  EXPECT_FALSE(signals.is_new({.number = SIGUSR1, .node = 2}, 10s + 999ms));
  EXPECT_TRUE(signals.is_new({.number = SIGUSR1, .node = 1}, 10s + 30ms)) << "the same launcher got another one";
  EXPECT_TRUE(signals.is_new({.number = SIGUSR2, .node = 2}, 10s + 40ms)) << "another signal";
  EXPECT_TRUE(signals.is_new({.number = SIGUSR1, .node = 2}, 12s)) << "later";
}

JoinRequest request_of(int node) {
  return {.version = "1",
          .build = "b",
          .node = node,
          .nodes = 3,
          .workers = 2,
          .host = "h",
          .machine = "m",
          .job = "",
          .program = "./prog --lr 1",
          .program_hash = "p",
          .bind = "10.0.0.2",
          .token = "t"};
}

RankView rank_at(int rank, std::uint64_t number, bool waits) {
  OperationView last{.number = number - 1, .communicator = "world", .text = fmt::format("barrier #{}", number - 1)};
  last.done = true;
  OperationView in{.number = number, .communicator = "world", .text = fmt::format("barrier #{}", number)};
  in.waits = waits;
  in.waits_from = 70s;
  RankView view{.rank = rank, .pid = 4711 + rank, .beats = true, .beat_age = 250ms, .step = 17};
  if (waits) view.operations = {in, last};
  else view.operations = {last};
  return view;
}

TEST(RankQuery, RanksComeBackFromAHostWithAnotherClock) {
  const auto views = views_from(to_json({rank_at(3, 8, true)}, "b", 100s), 5000s);
  ASSERT_EQ(views.size(), 1u);
  EXPECT_EQ(views[0].rank, 3);
  EXPECT_EQ(views[0].host, "b");
  EXPECT_EQ(views[0].pid, 4714);
  EXPECT_EQ(views[0].step, 17u);
  EXPECT_EQ(views[0].beat_age, 250ms);
  ASSERT_NE(views[0].waiting(), nullptr);
  EXPECT_EQ(views[0].waiting()->text, "barrier #8");
  EXPECT_EQ(views[0].waiting()->waits_from, 4970s);
  EXPECT_EQ(views[0].last_completed()->text, "barrier #7");
  EXPECT_THROW(views_from({{{"rank", 1}}}, 0s), nlohmann::json::exception);
}

TEST(RankQuery, TellsOnceForEachOperationThatIsWaitedIn) {
  const auto answer = [](int rank, std::uint64_t number, bool waits) {
    return views_from(to_json({rank_at(rank, number, waits)}, fmt::format("h{}", rank), 100s), now());
  };
  RankQuery rank_query;
  EXPECT_EQ(rank_query.take(), std::nullopt);
  ASSERT_TRUE(rank_query.begin(30s, 2));
  EXPECT_FALSE(rank_query.begin(31s, 2)) << "one question at a time";
  rank_query.add(0, answer(0, 8, true));
  rank_query.add(1, answer(1, 8, false));
  const auto text = rank_query.take();
  ASSERT_TRUE(text);
  EXPECT_TRUE(contains(*text, "[E412 STUCK] no progress for 30 s")) << *text;
  EXPECT_TRUE(contains(*text,
                       "root suspect: rank 1 on h1 is at #7, user code after barrier #7, last seen 0.2 s ago, "
                       "while rank 0 waits in #8\n"))
      << *text;
  ASSERT_TRUE(rank_query.begin(40s, 2));
  rank_query.add(0, answer(0, 8, true));
  rank_query.add(1, answer(1, 8, false));
  EXPECT_EQ(rank_query.take(), std::nullopt) << "known";
  ASSERT_TRUE(rank_query.begin(30s, 2));
  rank_query.add(0, answer(0, 9, true));
  rank_query.add(1, answer(1, 9, true));
  const auto all = rank_query.take();
  ASSERT_TRUE(all);
  EXPECT_TRUE(contains(*all, "root suspect: none: ranks 0-1 wait in #9; what some have sent")) << *all;
}

TEST(Record, ASilentWorkerIsTheCauseThoughOthersEndBefore) {
  JobRecord record;
  record.add(JobOutcome{.text = "rank 3 is silent", .exit_code = 137, .rank = 3, .fault = Fault::PeerSilent});
  record.add(JobOutcome{.text = "node 2 is lost", .exit_code = 69, .rank = 4, .fault = Fault::HostLost});
  EXPECT_EQ(record.job_outcome({}).exit_code, 137);
  EXPECT_TRUE(contains(record.job_outcome({}).text, "paceline: rank 3 is silent\n  [E203 PEER_LOST]\n"));
  record.add(WorkerEnd{.rank = 0, .status = 1 << 8});
  EXPECT_EQ(record.cause(), nullptr);
  record.add(WorkerEnd{.rank = 3, .status = SIGKILL, .silence = Error(Fault::PeerSilent, "rank 3 is silent")});
  ASSERT_NE(record.cause(), nullptr);
  EXPECT_EQ(record.cause()->rank, 3);
}

TEST(Record, WhatCameFirstIsTheCause) {
  JobRecord record;
  record.add(WorkerEnd{.rank = 1, .status = 7 << 8});
  record.add(JobOutcome{.text = "node 2 is lost", .exit_code = 69, .rank = 4, .fault = Fault::HostLost});
  EXPECT_EQ(record.job_outcome({}).exit_code, 7);
  JobRecord other;
  other.add(JobOutcome{.text = "node 2 is lost", .exit_code = 69, .rank = 4, .fault = Fault::HostLost});
  other.add(WorkerEnd{.rank = 1, .status = 7 << 8});
  EXPECT_EQ(other.job_outcome({}).exit_code, 69);
}

TEST(JoinRequest, ComesBack) {
  const JoinRequest before = request_of(2), after = join_request_from(to_json(before));
  EXPECT_EQ(to_json(before), to_json(after));
  EXPECT_EQ(before.who("10.0.0.2"), "node 2 (host h at 10.0.0.2)");
}

TEST(JoinRequest, SaysWhyLaunchersDoNotBelongTogether) {
  const JoinRequest zero = [] {
    JoinRequest made = request_of(0);
    made.job = "train";
    return made;
  }();
  EXPECT_EQ(incompatibility(zero, request_of(1), "10.0.0.2"), "");
  const auto with = [&](auto&& change) {
    JoinRequest other = request_of(1);
    change(other);
    return incompatibility(zero, other, "10.0.0.2");
  };
  EXPECT_EQ(with([](JoinRequest& other) { other.version = "2"; }),
            "node 1 (host h at 10.0.0.2) runs paceline 2, but node 0 runs 1; install the same on all hosts");
  EXPECT_EQ(with([](JoinRequest& other) { other.nodes = 4; }),
            "node 1 (host h at 10.0.0.2) was started with --nnodes 4, but node 0 with --nnodes 3");
  EXPECT_TRUE(contains(with([](JoinRequest& other) { other.job = "evaluate"; }), "node 0 runs job \"train\""));
  EXPECT_TRUE(contains(with([](JoinRequest& other) { other.node = 3; }), "cannot be one of 3 nodes"));
  EXPECT_TRUE(contains(with([](JoinRequest& other) {
                         other.machine = "another";
                         other.bind = "127.0.0.1";
                       }),
                       "reached the rendezvous through loopback"));
  EXPECT_EQ(with([](JoinRequest& other) { other.bind = "127.0.0.1"; }), "") << "on one host loopback is all right";
}

TEST(JoinRequest, WarnsOfOtherPrograms) {
  JoinRequest other = request_of(1);
  EXPECT_EQ(oddity(request_of(0), other, "a"), "");
  other.build = "c";
  EXPECT_TRUE(contains(oddity(request_of(0), other, "a"), "runs another build of paceline"));
  other.program_hash = "q";
  EXPECT_TRUE(contains(oddity(request_of(0), other, "a"), "starts another build of \"./prog --lr 1\""));
  other.program = "./prog --lr 2";
  EXPECT_EQ(
      oddity(request_of(0), other, "a"),
      "warning: node 1 (host h at a) starts another program than node 0: \"./prog --lr 2\" there, \"./prog --lr 1\" "
      "here");
}

TEST(Shell, ReadsBackWhatWasQuoted) {
  const std::vector<std::string> words{"plain-1.0/x",           "",     "two words", "it's",
                                       "$HOME `id` \"x\" \\ *", "a\nb", "--x=1"};
  EXPECT_EQ(shell_quote("plain-1.0/x"), "plain-1.0/x");
  const std::string command = "printf '%s\\1' " + shell_line(words);
  FILE* pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string read;
  for (int byte = 0; (byte = std::fgetc(pipe)) != EOF;) read += static_cast<char>(byte);
  EXPECT_EQ(::pclose(pipe), 0);
  std::string expected;
  for (const std::string& word : words) expected += word + "\1";
  EXPECT_EQ(read, expected);
}

TEST(PortHolder, NamesTheProcessOverIPv4AndIPv6) {
  for (const std::string host : {"127.0.0.1", "::1"}) {
    const UniqueFd listener = listen_on(SocketAddress(host, 0), {}, 1);
    const SocketAddress address = local_address(listener.get());
    const std::string holder = port_holder(address);
    EXPECT_TRUE(contains(holder, fmt::format("process {} (", ::getpid()))) << holder;
    EXPECT_TRUE(contains(holder, "launch_nodes_p")) << holder;
    std::string why;
    const UniqueFd caller = connect_to(address, Deadline(10s), why);
    ASSERT_TRUE(caller) << why;
    EXPECT_EQ(socket_owner(local_address(caller.get()), address), ::geteuid());
    EXPECT_EQ(socket_owner(local_address(caller.get()), SocketAddress(host, 1)), std::nullopt);
  }
}

TEST(PortHolder, SeesAWildcardListener) {
  const UniqueFd listener = listen_on(SocketAddress("0.0.0.0", 0), {}, 1);
  const SocketAddress address("127.0.0.1", local_address(listener.get()).port());
  EXPECT_TRUE(contains(port_holder(address), fmt::format("process {} (", ::getpid())));
}

/// Two control channels, one of which calls the other.
struct TwoSidesOfAControlChannel : testing::Test {
  static std::vector<UniqueFd> listener(SocketAddress& address) {
    std::vector<UniqueFd> listeners;
    listeners.push_back(listen_on(SocketAddress("127.0.0.1", 0), {}, 16));
    address = local_address(listeners.front().get());
    return listeners;
  }

  SocketAddress address{"127.0.0.1", 0};
  const Secret secret = Secret::random();
  std::optional<ControlChannels> zero{std::in_place, Acceptor(listener(address), secret)};
  std::optional<ControlChannels> other{std::in_place, std::nullopt};

  std::map<const ControlChannels*, std::vector<LineEvent>> waiting;
  LineEvent next(ControlChannels& job_status) {
    auto& events = waiting[&job_status];
    while (events.empty()) {
      pollfd polled{job_status.fd(), POLLIN, 0};
      if (::poll(&polled, 1, 60'000) != 1) throw std::runtime_error("nothing came");
      events = job_status.take_events();
    }
    LineEvent event = std::move(events.front());
    events.erase(events.begin());
    return event;
  }

  UniqueFd call() const {
    UniqueFd socket;
    std::string why;
    const auto outcome =
        connect_authenticated(address, secret, introduction_for(Purpose::Launcher), Deadline(60s), socket, why);
    if (outcome != ConnectOutcome::Met) throw std::runtime_error(why);
    return socket;
  }
};

TEST_F(TwoSidesOfAControlChannel, CarryMessagesBothWaysAndTheLastWords) {
  const int out = other->add(call());
  const LineEvent opened = next(*zero);
  ASSERT_EQ(opened.kind, LineEvent::Kind::Opened);
  EXPECT_EQ(opened.own->text(), address.text());
  other->send(out, {{"kind", "say"}, {"big", std::string(500'000, 'x')}});
  EXPECT_EQ(next(*zero).message.at("big").get<std::string>().size(), 500'000u);
  zero->send(opened.line, {{"kind", "over"}});
  zero.reset();
  EXPECT_EQ(next(*other).message.at("kind"), "over");
  EXPECT_EQ(next(*other).kind, LineEvent::Kind::Closed);
}

TEST_F(TwoSidesOfAControlChannel, TellOfALineThatSpeaksNonsense) {
  const UniqueFd socket = call();
  const LineEvent opened = next(*zero);
  ASSERT_EQ(opened.kind, LineEvent::Kind::Opened);
  const std::string junk = "GET / HTTP/1.1\r\n\r\n";
  ::send(socket.get(), junk.data(), junk.size(), MSG_NOSIGNAL);
  const LineEvent closed = next(*zero);
  EXPECT_EQ(closed.kind, LineEvent::Kind::Closed);
  EXPECT_TRUE(contains(closed.why, "a launcher's frame")) << closed.why;
}

TEST_F(TwoSidesOfAControlChannel, ASideThatDoesNotAnswerIsSilent) {
  const UniqueFd socket = call();  // which nobody reads from
  const Nanoseconds began = now();
  ASSERT_EQ(next(*zero).kind, LineEvent::Kind::Opened);
  EXPECT_EQ(next(*zero).kind, LineEvent::Kind::Silent);
  EXPECT_GE(now() - began, ControlChannels::kSilence - 100ms);
}

}  // namespace
}  // namespace paceline::launch
