#include "paceline/sync/exact_reduction.h"

namespace paceline {

void ExactReduction::launch(const BucketPiece& piece, const RoundCall& call) {
  if (before_send_) before_send_(piece, piece.dtype, piece.bytes);
  pieces_.push_back(comm_.start({.kind = Collective::AllReduce,
                                 .dtype = piece.dtype,
                                 .reduce = call.op,
                                 .count = piece.bytes.size() / size_of(piece.dtype),
                                 .call_count = piece.bucket_bytes / size_of(piece.dtype),
                                 .in = piece.bytes.data(),
                                 .out = piece.bytes.data(),
                                 .weight = call.weight,
                                 .label = piece.label,
                                 .timed = true}));
}

}  // namespace paceline
