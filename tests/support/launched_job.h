// `paceline run` as a process under test, and looking at processes from outside.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/base/error.h"
#include "paceline/base/unique_fd.h"
#include "tests/support/build_paths.h"
#include "tests/support/temporary_folder.h"

namespace paceline {

using namespace std::chrono_literals;
using testing::AssertionFailure;
using testing::AssertionResult;
using testing::AssertionSuccess;

/// Longer than a loaded machine needs, so that reaching it means a hang.
constexpr auto kPatience = 90s;

// ---- Looking at processes from outside.

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

/// The processes that have `mark` in their environment: whatever a job with that mark has started. Not zombies.
inline std::vector<pid_t> marked_processes(const std::string& mark) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid > 0 && pid != ::getpid() && read_file(entry.path() / "environ").find(mark) != std::string::npos) {
      found.push_back(pid);
    }
  }
  return found;
}

inline std::string command_line(pid_t pid) {
  std::string text = read_file(fmt::format("/proc/{}/cmdline", pid));
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

inline pid_t parent_of(pid_t pid) {
  const std::string stat = read_file(fmt::format("/proc/{}/stat", pid));
  const std::size_t name_end = stat.rfind(')');
  return name_end == std::string::npos ? 0 : std::atoi(stat.c_str() + name_end + 4);
}

inline AssertionResult eventually(const std::function<bool()>& condition) {
  const Deadline deadline(kPatience);
  while (!condition()) {
    if (deadline.passed()) return AssertionFailure() << "not within the deadline";
    ::poll(nullptr, 0, 5);
  }
  return AssertionSuccess();
}

// ---- A job under test.

struct Setup {
  std::map<std::string, std::string> environment = {};
  bool terminal = false;                 // stdout and stderr are a pseudo-terminal
  bool closed = false;                   // stdout and stderr are closed
  std::string cgroup = {};               // the folder of one to start it in
  unsigned long open_files = 0;          // its limit of them, soft and hard, if not 0
  std::vector<std::string> within = {};  // a command that becomes what its further arguments say, as nice does
};

class Job {
 public:
  explicit Job(std::vector<std::string> arguments, const Setup& setup = {}) {
    static std::atomic<int> count{0};
    mark_ = fmt::format("PACELINE_TEST_MARK=mark-{}-{}-end", ::getpid(), ++count);
    int out[2], err[2] = {-1, -1};
    if (setup.terminal) {
      winsize size{.ws_row = 24, .ws_col = 60, .ws_xpixel = 0, .ws_ypixel = 0};
      if (::openpty(&out[0], &out[1], nullptr, nullptr, &size) != 0) throw system_error("openpty", errno);
      ::fcntl(out[0], F_SETFD, FD_CLOEXEC);
    } else if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
      throw system_error("pipe", errno);
    }
    std::vector<std::string> words = setup.within, variables;
    words.emplace_back(test::kPacelineBinary);
    words.insert(words.end(), arguments.begin(), arguments.end());
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string name = std::string(*variable).substr(0, std::string(*variable).find('='));
      if (!setup.environment.contains(name) && !name.ends_with("_NUM_THREADS") && name != "NO_COLOR" &&
          name != "TERM") {
        variables.push_back(*variable);
      }
    }
    if (!setup.environment.contains("TERM")) variables.push_back("TERM=xterm");
    for (const auto& [name, value] : setup.environment) variables.push_back(name + "=" + value);
    variables.push_back(mark_);
    std::vector<char*> argv, envp;
    for (auto& word : words) argv.push_back(word.data());
    for (auto& variable : variables) envp.push_back(variable.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);

    pid_ = ::fork();
    if (pid_ == 0) {
      ::setpgid(0, 0);                     // signals to a test's group must not reach the test
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is killed, by its time limit say, leaves no job behind
      ::dup2(out[1], 1);
      ::dup2(setup.terminal ? out[1] : err[1], 2);
      if (setup.closed) ::close(1), ::close(2), ::close(0);
      if (!setup.cgroup.empty()) std::ofstream(setup.cgroup + "/cgroup.procs") << ::getpid() << std::endl;
      const rlimit files{setup.open_files, setup.open_files};
      if (setup.open_files != 0 && ::setrlimit(RLIMIT_NOFILE, &files) != 0) ::_exit(98);
      ::execve(argv[0], argv.data(), envp.data());
      ::_exit(99);
    }
    ::close(out[1]);
    if (err[1] >= 0) ::close(err[1]);
    out_.reset(out[0]);
    err_.reset(err[0]);
    for (const UniqueFd* fd : {&out_, &err_}) {
      if (*fd) ::fcntl(fd->get(), F_SETFL, O_NONBLOCK);
    }
  }

  ~Job() {
    if (!reaped_) ::kill(pid_, SIGKILL);
    EXPECT_TRUE(eventually([&] {
      const std::vector<pid_t> left = look_twice();
      for (const pid_t pid : left) ::kill(pid, SIGKILL);
      return left.empty();
    }));
    if (!reaped_) ::waitpid(pid_, nullptr, 0);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  pid_t pid() const { return pid_; }
  pid_t supervisor() const {
    for (const pid_t pid : marked_processes(mark_)) {
      if (parent_of(pid) == pid_) return pid;
    }
    return 0;
  }
  void signal(int number) { ::kill(pid_, number); }
  void close_out() { out_.reset(); }
  const std::string& out() const { return out_text_; }
  const std::string& err() const { return err_text_; }

  /// Reads what there is, waiting a moment for it.
  void read_some() {
    pollfd polled[] = {{out_ ? out_.get() : -1, POLLIN, 0}, {err_ ? err_.get() : -1, POLLIN, 0}};
    ::poll(polled, 2, 5);
    char bytes[65536];
    for (auto [fd, text] : {std::pair{&out_, &out_text_}, std::pair{&err_, &err_text_}}) {
      while (*fd) {
        const ssize_t count = ::read(fd->get(), bytes, sizeof(bytes));
        if (count > 0) text->append(bytes, static_cast<std::size_t>(count));
        if (count == 0 || (count < 0 && errno == EIO)) fd->reset();  // EIO: the other side of a terminal is closed
        if (count < 0) break;
      }
    }
  }

  AssertionResult says(const std::string& text) {
    return eventually([&] {
      read_some();
      return out_text_.find(text) != std::string::npos || err_text_.find(text) != std::string::npos;
    });
  }

  /// The exit code; 1000 + signal if a signal killed it, -1 if it did not end.
  int wait() {
    int status = 0;
    const auto ended = eventually([&] {
      read_some();
      return ::waitpid(pid_, &status, WNOHANG) == pid_;
    });
    if (!ended) return -1;
    reaped_ = true;
    for (int round = 0; (out_ || err_) && round < 100; ++round) read_some();
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  AssertionResult leaves_nothing() {
    std::vector<pid_t> left;
    if (eventually([&] { return (left = look_twice()).empty(); })) return AssertionSuccess();
    auto failure = AssertionFailure();
    for (const pid_t pid : left) failure << "process " << pid << " is left: " << command_line(pid) << "\n";
    return failure;
  }
  std::size_t processes() const { return marked_processes(mark_).size(); }

 private:
  /// One look may miss a process that starts during it, or that is in the middle of exec and shows no environment.
  std::vector<pid_t> look_twice() const {
    const std::vector<pid_t> found = marked_processes(mark_);
    return found.empty() ? marked_processes(mark_) : found;
  }

  pid_t pid_ = 0;
  std::string mark_;
  UniqueFd out_, err_;
  std::string out_text_, err_text_;
  bool reaped_ = false;
};

/// The pid that `rank` printed as "pid P".
inline pid_t pid_printed(Job& job, int rank) {
  const std::regex line(fmt::format("\\[rank {}\\] pid (\\d+)\n", rank));
  std::smatch match;
  const auto found = eventually([&] {
    job.read_some();
    return std::regex_search(job.out(), match, line);
  });
  return found ? std::stoi(match[1]) : 0;
}

inline std::vector<std::string> run_sh(int workers, const std::string& script, std::vector<std::string> options = {}) {
  std::vector<std::string> arguments{"run", "-n", std::to_string(workers)};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {"--", "sh", "-c", script});
  return arguments;
}

/// Workers are this binary; `test` is one of the Worker tests.
inline std::vector<std::string> run_worker(int workers, const std::string& test,
                                           std::vector<std::string> options = {}) {
  std::vector<std::string> arguments{"run", "-n", std::to_string(workers)};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {"--", std::filesystem::read_symlink("/proc/self/exe").string(),
                                     "--gtest_also_run_disabled_tests", "--gtest_filter=Worker.DISABLED_" + test});
  return arguments;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline std::size_t count(const std::string& text, const std::string& part) {
  std::size_t times = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++times;
  return times;
}

}  // namespace paceline
