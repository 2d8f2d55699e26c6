#include "paceline/launch/worker.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>

#include "paceline/base/error.h"

namespace paceline::launch {
namespace {

struct Pipe {
  UniqueFd read, write;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error("cannot create a pipe for a worker", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

struct ChildPlan {
  const char* executable;
  char* const* arguments;
  char* const* environment;
  const WorkerProgram& program;
  pid_t parent;
  int in, out, err, failure;
};

[[noreturn]] void become_worker(const ChildPlan& plan);

}  // namespace

StartedWorker start_worker(const WorkerProgram& program) {
  const UniqueFd in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!in) throw system_error("cannot open /dev/null", errno);
  Pipe out = make_pipe(), err = make_pipe(), failure = make_pipe();
  for (const UniqueFd* end : {&out.read, &err.read}) {
    if (::fcntl(end->get(), F_SETFL, O_NONBLOCK) != 0) throw system_error("cannot prepare a worker's pipe", errno);
  }
  const std::vector<char*> arguments = pointers(program.arguments), environment = pointers(program.environment);
  const ChildPlan plan{program.executable.c_str(),
                       arguments.data(),
                       environment.data(),
                       program,
                       ::getpid(),
                       program.input >= 0 ? program.input : in.get(),
                       out.write.get(),
                       err.write.get(),
                       failure.write.get()};

  StartedWorker worker;
  worker.pid = ::fork();
  if (worker.pid < 0) throw system_error("cannot start a worker process", errno);
  if (worker.pid == 0) become_worker(plan);

  // The pipe closes when exec succeeds; else it brings the reason.
  failure.write.reset();
  while (::read(failure.read.get(), &worker.start_error, sizeof(worker.start_error)) < 0 && errno == EINTR) continue;
  worker.out = std::move(out.read);
  worker.err = std::move(err.read);
  return worker;
}

namespace {

/// Between fork and exec in a process that had threads: system calls only, no memory, no locks.
void become_worker(const ChildPlan& plan) {
  // Its own group, so that a signal meant for this worker also reaches what a script started.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) ::_exit(1);  // the parent died before the line above
  ::setrlimit(RLIMIT_NOFILE, &plan.program.open_files);
  if (plan.program.inherited >= 0) ::fcntl(plan.program.inherited, F_SETFD, 0);
  if (::dup2(plan.in, 0) == 0 && ::dup2(plan.out, 1) == 1 && ::dup2(plan.err, 2) == 2) {
    ::sigprocmask(SIG_SETMASK, &plan.program.signal_mask, nullptr);
    ::execve(plan.executable, plan.arguments, plan.environment);
  }
  const int error = errno;
  while (::write(plan.failure, &error, sizeof(error)) < 0 && errno == EINTR) continue;
  ::_exit(127);
}

}  // namespace
}  // namespace paceline::launch
