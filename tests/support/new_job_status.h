// A job status to write on and to look at, in one process.
#pragma once

#include <cstddef>
#include <memory>

#include "paceline/comm/status/status_writer.h"

namespace paceline::test {

inline std::shared_ptr<JobStatus> new_job_status(int slots = 2) {
  return std::make_shared<JobStatus>(StatusFacts{
      .slots = slots, .world_size = slots, .first_rank = 0, .launcher = 1, .job = "job", .program = "program"});
}

inline Operation sum_of(std::size_t count) {
  return {.kind = Collective::AllReduce, .dtype = Dtype::Float32, .reduce = ReduceOp::Sum, .count = count};
}

inline const StatusName kWorld = status_name("world");

}  // namespace paceline::test
