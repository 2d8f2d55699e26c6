// What Comm::from_env() makes of variables that mean nothing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "paceline/base/unique_fd.h"
#include "paceline/comm/comm.h"
#include "paceline/comm/standard_output.h"

namespace paceline {
namespace {

using Variables = std::map<std::string, std::string>;

void expect_refused(const Variables& variables, const std::string& named) {
  Variables all{{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"PACELINE_STORE", "unix:@nobody"}, {"PACELINE_TIMEOUT", "1"}};
  for (const auto& [name, value] : variables) all[name] = value;
  for (const auto& [name, value] : all) ::setenv(name.c_str(), value.c_str(), 1);
  try {
    (void)Comm::from_env();
    ADD_FAILURE() << named << "=" << all[named] << " was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
    EXPECT_NE(error.message().find(named + "=" + all[named]), std::string::npos) << error.what();
  }
  for (const auto& [name, value] : all) ::unsetenv(name.c_str());
}

TEST(Environment, NumbersThatAreNoneAreRefused) {
  for (const char* name : {"RANK", "WORLD_SIZE", "PACELINE_TIMEOUT"}) {
    for (const char* value : {"-1", "1x", " 1", "0x1", "99999999999999999999", "2147483648", "1.5"}) {
      expect_refused({{name, value}}, name);
    }
  }
}

// ---- Other launchers.

/// What from_env() says with these variables alone; empty if it makes a world of one.
std::string refusal(const Variables& variables) {
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  std::string text;
  try {
    EXPECT_EQ(Comm::from_env().world_size(), 1);
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::BadArgument);
    text = error.message();
  }
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
  return text;
}

const std::vector<Variables> kOneOfFour = {
    {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "0"}},
    {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}},
    {{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "4"}},
    {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "4"}},
    {{"SLURM_STEPID", "0"}, {"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}},
    {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"TORCHELASTIC_RUN_ID", "none"}, {"MASTER_ADDR", "127.0.0.1"}},
};

TEST(OtherLaunchers, OfSeveralProcessesAreRefusedWithWhatToTypeInstead) {
  for (const Variables& variables : kOneOfFour) {
    const std::string text = refusal(variables);
    EXPECT_NE(text.find("as one of 4 ("), std::string::npos) << variables.begin()->first << ": " << text;
    EXPECT_NE(text.find("Type instead: paceline run -n 4 -- "), std::string::npos) << text;
    EXPECT_NE(text.find("environment_test"), std::string::npos) << text;
    EXPECT_NE(text.find("WORLD_SIZE=1"), std::string::npos) << text;
  }
  EXPECT_NE(refusal({{"PMIX_RANK", "1"}}).find("PMIX_RANK=1"), std::string::npos);
}

TEST(OtherLaunchers, OfOneProcessAreNoReasonToRefuse) {
  for (Variables variables : kOneOfFour) {
    for (auto& [name, value] : variables) {
      if (name.find("SIZE") != std::string::npos || name.find("TASKS") != std::string::npos) value = "1";
      if (name.find("RANK") != std::string::npos || name.find("PROCID") != std::string::npos) value = "0";
    }
    EXPECT_EQ(refusal(variables), "");
  }
  // A batch script, and the shell of an allocation, which is a step of one task.
  EXPECT_EQ(refusal({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}}), "");
  EXPECT_EQ(refusal({{"SLURM_STEP_ID", "4294967290"},
                     {"SLURM_PROCID", "0"},
                     {"SLURM_NTASKS", "4"},
                     {"SLURM_STEP_NUM_TASKS", "1"}}),
            "");
  EXPECT_EQ(refusal({{"OMPI_COMM_WORLD_SIZE", "many"}}), "");
}

TEST(OtherLaunchers, AWorldOfOneCanBeHadAmongThem) {
  for (Variables variables : kOneOfFour) {
    variables["WORLD_SIZE"] = "1";
    EXPECT_EQ(refusal(variables), "");
  }
}

// ---- Standard output of a worker.

/// What a reader of the pipe gets of a line that is not flushed.
struct PipeStream {
  PipeStream() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw system_error("pipe", errno);
    read.reset(ends[0]);
    stream.reset(::fdopen(ends[1], "w"));
  }
  std::string arrives() const {
    std::fputs("a line\nmore", stream.get());
    char bytes[64];
    const ssize_t count = ::read(read.get(), bytes, sizeof bytes);
    return count > 0 ? std::string(bytes, static_cast<std::size_t>(count)) : "";
  }
  UniqueFd read;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream{nullptr, std::fclose};
};

TEST(Output, OfAWorkerLeavesItLineByLine) {
  const PipeStream fresh;
  keep_no_lines(fresh.stream.get());
  EXPECT_EQ(fresh.arrives(), "a line\n");
}

TEST(Output, IsBufferedAsTheProgramChose) {
  const PipeStream full, none, used;
  std::setvbuf(full.stream.get(), nullptr, _IOFBF, 4096);
  keep_no_lines(full.stream.get());
  EXPECT_EQ(full.arrives(), "");
  std::setvbuf(none.stream.get(), nullptr, _IONBF, 0);
  keep_no_lines(none.stream.get());
  EXPECT_EQ(none.arrives(), "a line\nmore");
  std::fputs("before", used.stream.get());
  keep_no_lines(used.stream.get());
  EXPECT_EQ(used.arrives(), "");
}

TEST(Output, OfAFileIsLeftAlone) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  keep_no_lines(file);
  std::fputs("a line\n", file);
  EXPECT_EQ(::lseek(::fileno(file), 0, SEEK_END), 0);
  std::fclose(file);
}

}  // namespace
}  // namespace paceline
