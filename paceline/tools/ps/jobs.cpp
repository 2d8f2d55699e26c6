#include "paceline/tools/ps/jobs.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

namespace paceline::tools {
namespace {

namespace fs = std::filesystem;

template <std::size_t kBytes>
std::string text_of(const char (&bytes)[kBytes]) {
  const std::string_view all(bytes, kBytes);
  std::string text(all.substr(0, all.find('\0')));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 127; }, '?');
  return text;
}

/// The job status that this process owns, if it is a launcher's supervisor.
std::optional<JobView> job_of(pid_t pid) {
  std::error_code none;
  const std::string wanted = fmt::format("/memfd:{} (deleted)", JobStatus::kName);
  for (fs::directory_iterator entry(fmt::format("/proc/{}/fd", pid), none), end; entry != end; entry.increment(none)) {
    if (none) break;
    std::error_code gone;
    if (fs::read_symlink(entry->path(), gone) != wanted || gone) continue;
    UniqueFd fd(::open(entry->path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) continue;
    try {
      const JobStatus job_status(std::move(fd));
      const StatusHeader& header = job_status.header();
      if (header.supervisor != pid) continue;  // a worker, which has inherited it
      JobView job;
      job.at = now();
      job.name = text_of(header.job);
      job.launcher = header.launcher;
      job.supervisor = pid;
      job.host = text_of(header.host);
      job.program = text_of(header.program);
      job.world_size = header.world_size;
      job.age = job.at - Nanoseconds(header.started);
      if (job_status.failed()) job.failure = text_of(header.failure.message);
      job.ranks = views_of(job_status, job.at);
      return job;
    } catch (const Error&) {
      continue;  // a file of that name which is no job status, or one of another version
    }
  }
  return std::nullopt;
}

}  // namespace

bool JobView::is(const std::string& wanted) const {
  if (wanted == name) return true;
  std::vector<pid_t> pids{launcher, supervisor};
  for (const RankView& rank : ranks) pids.push_back(rank.pid);
  return std::any_of(pids.begin(), pids.end(), [&](pid_t pid) { return std::to_string(pid) == wanted; });
}

std::vector<JobView> running_jobs() {
  std::vector<JobView> jobs;
  std::error_code none;
  for (fs::directory_iterator entry("/proc", none), end; entry != end; entry.increment(none)) {
    if (none) break;
    const pid_t pid = std::atoi(entry->path().filename().c_str());
    if (pid <= 0) continue;
    if (auto job = job_of(pid)) jobs.push_back(std::move(*job));
  }
  std::sort(jobs.begin(), jobs.end(), [](const JobView& a, const JobView& b) { return a.age > b.age; });
  return jobs;
}

}  // namespace paceline::tools
