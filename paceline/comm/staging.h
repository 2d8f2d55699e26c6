#pragma once

#include "paceline/comm/comm_state.h"

namespace paceline::staged {

// Blocking collectives on any memory. Where an engine does not reach all of it, they are carried out in pieces, which
// are the same on all ranks, and operands that it does not reach go through a small buffer: two copies more.

void all_reduce(Comm::State& comm, const Operation& operation);
void reduce_scatter(Comm::State& comm, const Operation& operation);
void all_gather(Comm::State& comm, const Operation& operation);
void broadcast(Comm::State& comm, const Operation& operation);

}  // namespace paceline::staged
