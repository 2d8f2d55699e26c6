// Buckets that travel in another way than as they are.
#include "paceline/train/ddp/data_parallel_state.h"
#include "paceline/train/tensor_over.h"

namespace paceline {

// The type in which values of `dtype` travel.
Dtype DistributedDataParallel::State::wire_dtype(Dtype dtype) const {
  const bool rounds = options.wire != Wire::AsIs && !options.reduce_bucket && comm.world_size() > 1;
  if (!rounds || size_of(dtype) == size_of(Dtype::Float16)) return dtype;
  return options.wire == Wire::Float16 ? Dtype::Float16 : Dtype::BFloat16;
}

// Two roundings, of which the second is that of the sum.
std::function<void()> DistributedDataParallel::State::send_rounded(const BucketPiece& piece, const RoundCall& call) {
  const torch::NoGradGuard no_grad;
  const Dtype dtype = wire_dtype(piece.dtype);
  if (rounded.size() <= piece.bucket) rounded.resize(piece.bucket + 1);
  Rounded& bucket = rounded[piece.bucket];
  bucket.piece = piece;
  std::span<std::byte> sent = piece.bytes;
  if (dtype != piece.dtype) {
    const std::size_t bytes = piece.bytes.size() / size_of(piece.dtype) * size_of(dtype);
    if (bucket.memory.bytes() != bytes) bucket.memory = comm.allocate(bytes);
    sent = {bucket.memory.data(), bytes};
    tensor_over(dtype, sent).copy_(tensor_over(piece.dtype, piece.bytes));
    note_not_finite(piece, dtype, sent);
  }
  bucket.work = comm.start({.kind = Collective::AllReduce,
                            .dtype = dtype,
                            .reduce = call.op,
                            .count = sent.size() / size_of(dtype),
                            .in = sent.data(),
                            .out = sent.data(),
                            .weight = call.weight,
                            .label = "rounded bucket"});
  return [this, index = piece.bucket] {
    const torch::NoGradGuard inner_no_grad;
    Rounded& done = rounded[index];
    done.work.wait();
    const Dtype wire = wire_dtype(done.piece.dtype);
    if (wire == done.piece.dtype) return;
    tensor_over(done.piece.dtype, done.piece.bytes).copy_(tensor_over(wire, {done.memory.data(), done.memory.bytes()}));
  };
}

std::function<void()> DistributedDataParallel::State::call_bucket_hook(const BucketPiece& piece,
                                                                       const RoundCall& call) {
  return options.reduce_bucket({.index = piece.bucket,
                                .values = tensor_over(piece.dtype, piece.bytes),
                                .comm = comm,
                                .reduction = options.reduction,
                                .weight = call.weight});
}

}  // namespace paceline
