#include "paceline/sync/rounded_reduction.h"

#include <utility>

#include "paceline/base/kernels.h"

namespace paceline {

RoundedReduction::RoundedReduction(Comm comm, Dtype wire, BeforeSend before_send)
    : comm_(std::move(comm)), wire_(wire), before_send_(std::move(before_send)) {}

void RoundedReduction::launch(const BucketPiece& piece, const RoundCall& call) {
  const Dtype dtype = wire_for(piece.dtype);
  std::span<std::byte> sent = piece.bytes;
  if (dtype != piece.dtype) {
    sent = memory_for(piece);
    convert(piece.dtype, piece.bytes, dtype, sent);
  }
  if (before_send_) before_send_(piece, dtype, sent);
  pieces_.push_back({piece, sent,
                     comm_.start({.kind = Collective::AllReduce,
                                  .dtype = dtype,
                                  .reduce = call.op,
                                  .count = sent.size() / size_of(dtype),
                                  .call_count = piece.bucket_bytes / size_of(piece.dtype),
                                  .in = sent.data(),
                                  .out = sent.data(),
                                  .weight = call.weight,
                                  .label = piece.label,
                                  .timed = true})});
}

void RoundedReduction::wait(std::size_t piece) {
  auto& [of, sent, work] = pieces_[piece];
  work.wait();
  const Dtype dtype = wire_for(of.dtype);
  if (dtype != of.dtype) convert(dtype, sent, of.dtype, of.bytes);
}

Dtype RoundedReduction::wire_for(Dtype dtype) const {
  return dtype == Dtype::Float32 || dtype == Dtype::Float64 ? wire_ : dtype;
}

// Where the piece's rounded values lie. A bucket's first piece comes first, and when buckets were laid out anew, its
// memory has another size.
std::span<std::byte> RoundedReduction::memory_for(const BucketPiece& piece) {
  const auto rounded = [&](std::size_t bytes) { return bytes / size_of(piece.dtype) * size_of(wire_); };
  if (memory_.size() <= piece.bucket) memory_.resize(piece.bucket + 1);
  Buffer& memory = memory_[piece.bucket];
  if (memory.bytes() != rounded(piece.bucket_bytes)) memory = comm_.allocate(rounded(piece.bucket_bytes));
  return {memory.data() + rounded(piece.offset), rounded(piece.bytes.size())};
}

}  // namespace paceline
