#pragma once

#include <sys/types.h>

#include <string>

#include "paceline/base/error.h"
#include "paceline/base/unique_fd.h"
#include "paceline/comm/status/status_layout.h"

namespace paceline {

/// What the launcher writes in a new job status.
struct StatusFacts {
  int slots = 0;       ///< Workers on this host.
  int world_size = 0;  ///< Workers of the job.
  int first_rank = 0;  ///< The rank of the first slot; the others follow.
  pid_t launcher = 0;
  std::string job = {}, program = {};
};

/// The job status of a host: shared memory without a name in the file system (memfd), made by the launcher, which its
/// workers inherit. Workers show there, each on a page of its own, that they live and where they are; the launcher
/// shows why the job failed.
class JobStatus {
 public:
  static constexpr const char* kName = "paceline-job-status";  // as /proc/PID/fd shows it
  static constexpr const char* kVariable = "PACELINE_JOB_STATUS";

  /// Makes one. Throws System when there is no memory for it.
  explicit JobStatus(const StatusFacts& facts);
  /// Opens the one that `address` names, which the launcher set as PACELINE_JOB_STATUS, as the worker of `slot`: what
  /// is not that worker's cannot be written through it. Throws InvalidArgument or System.
  JobStatus(const std::string& address, int slot);
  /// Opens one that somebody else's descriptor shows, to look at. Throws Corrupt when it is none.
  explicit JobStatus(UniqueFd fd);
  ~JobStatus();
  JobStatus(const JobStatus&) = delete;
  JobStatus& operator=(const JobStatus&) = delete;

  int fd() const { return fd_.get(); }
  /// For workers: "DESCRIPTOR/PID", since whatever starts the worker's program in between may close descriptors.
  std::string address() const;

  int slots() const { return slots_; }
  const StatusHeader& header() const { return *header_; }
  StatusSlot& slot(int index) const { return first_slot_[index]; }

  // For the launcher.
  void started(int slot, pid_t pid);
  void ended(int slot);
  /// Makes `cause` the job's failure, unless it has one.
  void fail(const Error& cause);

  // For workers.
  bool failed() const { return header_->failure.set.load(std::memory_order_acquire) != 0; }
  /// Throws the job's failure, if it has one, as seen by `rank` in `what`.
  void check(int rank, const std::string& what) const;
  /// The same for a rank that has seen a consequence: waits for what the launcher makes of it, but not for long.
  void await_failure(int rank, const std::string& what) const;

 private:
  void map(int protection);

  UniqueFd fd_;
  int slots_ = 0;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  StatusHeader* header_ = nullptr;
  StatusSlot* first_slot_ = nullptr;
};

}  // namespace paceline
