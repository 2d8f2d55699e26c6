// `paceline run` as its users see it, while all goes well: how workers are started and how their output is shown.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/support/launched_job.h"

namespace paceline {
namespace {

// ---- Starting.

TEST(Launcher, PlainProgramsRunAndTheirLinesAreTagged) {
  Job job({"run", "-n", "3", "--", "echo", "hi"});
  EXPECT_EQ(job.wait(), 0);
  auto lines = lines_of(job.out());
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, (std::vector<std::string>{"[rank 0] hi", "[rank 1] hi", "[rank 2] hi"}));
  EXPECT_EQ(job.err(), "");
  EXPECT_TRUE(job.leaves_nothing());
}

TEST(Launcher, TheProgramKeepsItsOwnDashes) {
  Job with({"run", "-n", "1", "--no-tag", "--", "echo", "a", "--", "-n", "--help"});
  EXPECT_EQ(with.wait(), 0);
  EXPECT_EQ(with.out(), "a -- -n --help\n");
  Job without({"run", "-n", "1", "--no-tag", "echo", "-x", "a", "--", "b"});
  EXPECT_EQ(without.wait(), 0);
  EXPECT_EQ(without.out(), "-x a -- b\n");
}

TEST(Launcher, EachWorkerHasItsPlaceInTheEnvironment) {
  Job job(
      run_sh(2,
             "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR $PACELINE_PROGRESS "
             "$OMP_NUM_THREADS $OPENBLAS_NUM_THREADS $MKL_NUM_THREADS $PACELINE_TIMEOUT $A ${PACELINE_RUN_DIR-none}; "
             "test -n \"$MASTER_PORT\" && test -n \"$PACELINE_STORE\" && test -n \"$PACELINE_JOB\"",
             {"--timeout", "7", "--env", "A=b=c"}),
      {.environment = {{"OPENBLAS_NUM_THREADS", "5"}, {"PACELINE_RUN_DIR", "/of/an/outer/job"}}});
  EXPECT_EQ(job.wait(), 0) << job.err();
  auto lines = lines_of(job.out());
  std::sort(lines.begin(), lines.end());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "[rank 0] 0 2 0 2 0 127.0.0.1 lines 1 5 1 7 b=c none");
  EXPECT_EQ(lines[1], "[rank 1] 1 2 1 2 0 127.0.0.1 lines 1 5 1 7 b=c none");
}

TEST(Launcher, WorkersKeepFreedMemoryUnlessToldOtherwise) {
  const std::string script = "echo ${MALLOC_TRIM_THRESHOLD_-unset} ${MALLOC_MMAP_MAX_-unset}";
  Job kept(run_sh(1, script));
  EXPECT_EQ(kept.wait(), 0);
  EXPECT_EQ(kept.out(), "[rank 0] 1099511627776 0\n");
  Job users(run_sh(1, script), {.environment = {{"MALLOC_MMAP_MAX_", "7"}}});
  EXPECT_EQ(users.wait(), 0);
  EXPECT_EQ(users.out(), "[rank 0] 1099511627776 7\n");
  Job returned(run_sh(1, script, {"--return-memory"}));
  EXPECT_EQ(returned.wait(), 0);
  EXPECT_EQ(returned.out(), "[rank 0] unset unset\n");
}

TEST(Launcher, PythonDoesNotKeepAWorkersOutputUnlessTheUserSaysSo) {
  const auto said = [](const std::vector<std::string>& options, const paceline::Setup& setup) {
    Job job(run_sh(1, "echo \"<${PYTHONUNBUFFERED-unset}>\"", options), setup);
    EXPECT_EQ(job.wait(), 0);
    return job.out();
  };
  EXPECT_EQ(said({}, {}), "[rank 0] <1>\n");
  EXPECT_EQ(said({}, {.environment = {{"PYTHONUNBUFFERED", ""}}}), "[rank 0] <>\n");
  EXPECT_EQ(said({"--env", "PYTHONUNBUFFERED="}, {}), "[rank 0] <>\n");
}

TEST(Launcher, OptionsGoBeforeTheEnvironment) {
  Job job(run_sh(1, "echo $OMP_NUM_THREADS $OPENBLAS_NUM_THREADS $PACELINE_RUN_DIR",
                 {"--threads-per-worker", "3", "--run-dir", "/some/where"}),
          {.environment = {{"OPENBLAS_NUM_THREADS", "5"}}});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), "[rank 0] 3 3 /some/where\n");
}

TEST(Launcher, TheMasterPortCanBeListenedOn) {
  Job job(run_sh(1, "echo port $MASTER_PORT.; sleep 1000"));
  ASSERT_TRUE(job.says(".\n"));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(job.out().substr(job.out().find("port ") + 5))));
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(::listen(fd.get(), 1), 0);
}

TEST(Launcher, BadUseIsOneLineAndExitCode64) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"run", "-n", "0", "--", "echo"}, "\"0\""},
      {{"run", "-n", "-3", "--", "echo"}, "\"-3\""},
      {{"run", "-n", "two", "--", "echo"}, "\"two\""},
      {{"run", "-n", "99999999999", "--", "echo"}, "1024"},
      {{"run", "-n", "2"}, "no program"},
      {{"run", "-n", "2", "--"}, "no program"},
      {{"run", "--", "echo"}, "required"},
      {{"run", "-n", "2", "--bogus", "--", "echo"}, "--bogus"},
      {{"run", "-n", "2", "--env", "novalue", "--", "echo"}, "KEY=VALUE"},
      {{"run", "-n", "2", "--timeout", "0", "--", "echo"}, "--timeout"},
      {{"run", "-n", "2", "--grace", "nan", "--", "echo"}, "seconds"},
      {{"run", "-n", "2", "--threads-per-worker", "0", "--", "echo"}, "--threads-per-worker"},
      {{"bogus"}, "bogus"},
      {{}, "required"},
  };
  for (const auto& [arguments, expected] : cases) {
    Job job(arguments);
    EXPECT_EQ(job.wait(), 64) << job.err();
    EXPECT_EQ(lines_of(job.err()).size(), 1u) << job.err();
    EXPECT_NE(job.err().find(expected), std::string::npos) << job.err();
    EXPECT_EQ(job.out(), "");
  }
}

TEST(Launcher, HelpAndVersionGoToStdout) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"--version"}, {"run", "--help"}}) {
    Job job(arguments);
    EXPECT_EQ(job.wait(), 0);
    EXPECT_NE(job.out().find("paceline"), std::string::npos);
    EXPECT_EQ(job.err(), "");
  }
}

TEST(Launcher, AProgramThatCannotBeStartedIsNamed) {
  const TemporaryFolder folder;
  const std::string plain = folder.file("plain", "data", 0644),
                    no_shebang = folder.file("no_shebang", "echo hi\n", 0755),
                    bad_shebang = folder.file("bad_shebang", "#!/no/such/interpreter\n", 0755);
  const std::vector<std::pair<std::string, int>> cases = {
      {"no-such-program-at-all", 127}, {"./no/such/file", 127}, {"", 127},         {plain, 126},
      {folder.path.string(), 126},     {no_shebang, 126},       {bad_shebang, 127}};
  for (const auto& [program, code] : cases) {
    Job job({"run", "-n", "2", "--", program});
    EXPECT_EQ(job.wait(), code) << program;
    EXPECT_EQ(lines_of(job.err()).size(), 1u) << job.err();
    EXPECT_NE(job.err().find(program), std::string::npos) << job.err();
    EXPECT_TRUE(job.leaves_nothing());
  }
}

// ---- Output.

TEST(LauncherOutput, LinesOfManyWorkersStayWhole) {
  constexpr int kWorkers = 4, kLines = 300;
  Job job(run_sh(kWorkers, fmt::format("i=0; while [ $i -lt {} ]; do printf \"begin $RANK \"; printf \"%s end\\n\" $i; "
                                       "i=$((i+1)); done",
                                       kLines)));
  EXPECT_EQ(job.wait(), 0);
  const auto lines = lines_of(job.out());
  EXPECT_EQ(lines.size(), static_cast<std::size_t>(kWorkers * kLines));
  std::map<char, int> next;
  for (const std::string& line : lines) {
    const char rank = line.at(6);
    ASSERT_EQ(line, fmt::format("[rank {}] begin {} {} end", rank, rank, next[rank]++));
  }
}

TEST(LauncherOutput, StdoutAndStderrStayApart) {
  Job job(run_sh(1, "echo to out; echo to err >&2"));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), "[rank 0] to out\n");
  EXPECT_EQ(job.err(), "[rank 0] to err\n");
}

TEST(LauncherOutput, ALastLineWithoutNewlineIsPrinted) {
  Job job(run_sh(1, "printf 'one\\ntwo'"));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), "[rank 0] one\n[rank 0] two\n");
}

TEST(LauncherOutput, BinaryOutputOfOneProgramIsUnchangedWithoutTags) {
  const TemporaryFolder folder;
  const std::string copy = (folder.path / "copy").string();
  Job job(run_sh(1, "head -c 300000 /dev/urandom | tr -d '\\r' | tee " + copy, {"--no-tag"}));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_TRUE(job.out() == read_file(copy));
}

TEST(LauncherOutput, ALineLongerThanAllBuffersComesOutWhole) {
  constexpr std::size_t kLength = 3'000'000;
  Job job(run_sh(1, fmt::format("head -c {} /dev/zero | tr '\\0' x; echo; echo next", kLength)));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_TRUE(job.out() == "[rank 0] " + std::string(kLength, 'x') + "\n[rank 0] next\n");
}

TEST(LauncherOutput, LongLinesOfManyWorkersLoseNothingAndKeepTheirTags) {
  constexpr std::size_t kLength = 500'000;
  Job job(run_sh(3, fmt::format("head -c {} /dev/zero | tr '\\0' $RANK; echo", kLength)));
  EXPECT_EQ(job.wait(), 0);
  std::map<char, std::size_t> bytes;
  for (const std::string& line : lines_of(job.out())) {
    ASSERT_EQ(line.substr(0, 6), "[rank ");
    const char rank = line.at(6);
    std::string text = line.substr(9);
    // What is not whole says so, on both sides of the cut.
    const std::string goes_on = "[goes on] ", cut = " [cut: it goes on below]";
    EXPECT_EQ(text.starts_with(goes_on), bytes[rank] > 0) << text.substr(0, 30);
    if (text.starts_with(goes_on)) text.erase(0, goes_on.size());
    const bool is_cut = text.ends_with(cut);
    if (is_cut) text.resize(text.size() - cut.size());
    ASSERT_EQ(text.find_first_not_of(rank), std::string::npos);
    bytes[rank] += text.size();
    EXPECT_EQ(is_cut, bytes[rank] < kLength);
  }
  EXPECT_EQ(bytes, (std::map<char, std::size_t>{{'0', kLength}, {'1', kLength}, {'2', kLength}}));
}

TEST(LauncherOutput, LiveLinesAreLeftOutWhereThereIsNoTerminal) {
  Job job(run_sh(1, "printf '10%%\\r20%%\\rdone\\nwindows\\r\\n'"));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), "[rank 0] done\n[rank 0] windows\n");
}

TEST(LauncherOutput, ATerminalShowsOneLiveLineUnderTheFullLines) {
  const TemporaryFolder folder;
  const std::string go = (folder.path / "go").string();
  Job job(run_sh(1, "printf '10%%\\r'; until test -e " + go +
                        "; do sleep 0.01; done; echo log >&2; "
                        "until test -e " +
                        go + "2; do sleep 0.01; done; echo over"),
          {.environment = {{"NO_COLOR", "1"}}, .terminal = true});
  ASSERT_TRUE(job.says("[rank 0] 10%"));
  std::ofstream(go) << "";
  // The live line goes, the full line comes, the live line stands below it again.
  ASSERT_TRUE(job.says("[rank 0] 10%\r\033[K[rank 0] log\r\n[rank 0] 10%")) << job.out();
  std::ofstream(go + "2") << "";
  EXPECT_EQ(job.wait(), 0);
  EXPECT_TRUE(job.out().ends_with("\r\033[K[rank 0] over\r\n")) << job.out();
}

TEST(LauncherOutput, ALiveLineFitsTheTerminal) {
  Job job(run_sh(1, "head -c 500 /dev/zero | tr '\\0' x; printf '\\r'; sleep 1000"),
          {.environment = {{"NO_COLOR", "1"}}, .terminal = true});
  const std::string shown = "[rank 0] " + std::string(59 - 9, 'x');
  ASSERT_TRUE(job.says(shown));
  EXPECT_EQ(job.out(), shown);
}

TEST(LauncherOutput, ColourAndProgressBarsAreForTerminals) {
  const auto arguments = run_sh(1, "echo $PACELINE_PROGRESS");
  Job coloured(arguments, {.terminal = true});
  EXPECT_EQ(coloured.wait(), 0);
  EXPECT_EQ(coloured.out(), "\033[36m[rank 0]\033[0m bar\r\n");
  Job plain(arguments, {.environment = {{"NO_COLOR", "1"}}, .terminal = true});
  EXPECT_EQ(plain.wait(), 0);
  EXPECT_EQ(plain.out(), "[rank 0] bar\r\n");
  Job dumb(arguments, {.environment = {{"TERM", "dumb"}}, .terminal = true});
  EXPECT_EQ(dumb.wait(), 0);
  EXPECT_EQ(dumb.out(), "[rank 0] lines\r\n");
}

TEST(LauncherOutput, AReaderThatGoesAwayEndsTheJob) {
  Job job(run_sh(2, "while :; do echo y; done"));
  ASSERT_TRUE(job.says("y"));
  job.close_out();
  EXPECT_EQ(job.wait(), 128 + SIGPIPE);
  EXPECT_NE(job.err().find("Broken pipe"), std::string::npos) << job.err();
  EXPECT_TRUE(job.leaves_nothing());
}

TEST(LauncherOutput, ClosedStandardDescriptorsDoNoHarm) {
  const TemporaryFolder folder;
  Job job(run_sh(2, "echo lost; echo $RANK > " + folder.path.string() + "/$RANK"), {.closed = true});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(read_file(folder.path / "1"), "1\n");
}

}  // namespace
}  // namespace paceline
