#include "paceline/comm/engine.h"

namespace paceline {

const char* to_string(Collective collective) {
  switch (collective) {
    case Collective::AllReduce: return "all_reduce";
    case Collective::ReduceScatter: return "reduce_scatter";
    case Collective::AllGather: return "all_gather";
    case Collective::Broadcast: return "broadcast";
    case Collective::Barrier: return "barrier";
  }
  return "unknown";
}

}  // namespace paceline
