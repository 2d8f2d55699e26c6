#include "paceline/train/ddp/hook_reduction.h"

#include "paceline/train/tensor_over.h"

namespace paceline {

void HookReduction::launch(const BucketPiece& piece, const RoundCall& call) {
  if (before_send_) before_send_(piece, piece.dtype, piece.bytes);
  pieces_.push_back(hook_({.index = piece.bucket,
                           .values = tensor_over(piece.dtype, piece.bytes),
                           .comm = comm_,
                           .reduction = reduction_,
                           .weight = call.weight}));
}

}  // namespace paceline
