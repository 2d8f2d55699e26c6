// A job board to write on and to look at, in one process.
#pragma once

#include <cstddef>
#include <memory>

#include "paceline/comm/status/status_writer.h"

namespace paceline::test {

inline std::shared_ptr<Board> new_board(int slots = 2) {
  return std::make_shared<Board>(
      BoardFacts{.slots = slots, .world_size = slots, .first_rank = 0, .front = 1, .job = "job", .program = "program"});
}

inline Operation sum_of(std::size_t count) {
  return {.kind = Collective::AllReduce, .dtype = Dtype::Float32, .reduce = ReduceOp::Sum, .count = count};
}

inline const BoardName kWorld = board_name("world");

}  // namespace paceline::test
