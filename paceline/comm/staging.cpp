#include "paceline/comm/staging.h"

#include <algorithm>

#include "paceline/base/bytes.h"

namespace paceline {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{1} << 20;

bool reaches_in(const Comm::State& comm, const Operation& operation) {
  return comm.engine->reaches(operation.in,
                              in_extent(operation, comm.rank, comm.world_size) * size_of(operation.dtype));
}

bool reaches_out(const Comm::State& comm, const Operation& operation) {
  return comm.engine->reaches(operation.out,
                              out_extent(operation, comm.rank, comm.world_size) * size_of(operation.dtype));
}

StagedLayout in_layout(const Operation& operation, const Comm::State& comm) {
  if (in_extent(operation, comm.rank, comm.world_size) == 0) return {0, 0};
  const bool many = operation.kind == Collective::ReduceScatter || operation.kind == Collective::Scatter ||
                    operation.kind == Collective::AllToAll;
  const auto world = static_cast<std::size_t>(comm.world_size);
  return {many ? world : 1, operation.in_stride != 0 ? operation.in_stride : operation.count};
}

StagedLayout out_layout(const Operation& operation, const Comm::State& comm) {
  if (out_extent(operation, comm.rank, comm.world_size) == 0) return {0, 0};
  const bool many = operation.kind == Collective::AllGather || operation.kind == Collective::Gather ||
                    operation.kind == Collective::AllToAll;
  const auto world = static_cast<std::size_t>(comm.world_size);
  return {many ? world : 1, operation.out_stride != 0 ? operation.out_stride : operation.count};
}

/// The elements of a piece: so few that in and out of any rank fit the staging buffer.
std::size_t piece_elements(const Operation& operation, int world_size) {
  const auto world = static_cast<std::size_t>(world_size);
  std::size_t parts = has_parts(operation.kind) ? world + 1 : 1;
  if (operation.kind == Collective::AllToAll) parts = 2 * world;
  const std::size_t line = 64;
  return std::max<std::size_t>(1, kStagingBytes / (parts * size_of(operation.dtype)) / line * line);
}

/// One call, cut into pieces that lie in the staging buffer or where the caller has them.
class Pieces {
 public:
  Pieces(Comm::State& comm, const Operation& whole)
      : comm_(comm),
        whole_(whole),
        in_(in_layout(whole, comm)),
        out_(out_layout(whole, comm)),
        in_staged_(!reaches_in(comm, whole)),
        out_staged_(!reaches_out(comm, whole)),
        most_(piece_elements(whole, comm.world_size)) {}

  bool staged() const { return in_staged_ || out_staged_; }
  std::size_t most() const { return most_; }

  /// The operation on `count` elements from `first` on of the whole, or of each part; what goes in is in place.
  Operation begin(std::size_t first, std::size_t count) {
    const std::size_t size = size_of(whole_.dtype);
    Operation piece = whole_;
    piece.count = count;
    if (piece.call_count == 0) piece.call_count = whole_.count;
    if (in_.parts > 0) piece.in += first * size;
    if (out_.parts > 0) piece.out += first * size;
    piece.in_stride = in_.stride;
    piece.out_stride = out_.stride;
    if (in_staged_) {
      piece.in = buffer();
      piece.in_stride = most_;
      copy(buffer(), most_, whole_.in + first * size, in_.stride, in_.parts, count);
    }
    if (out_staged_) {
      // In place stays in place; otherwise results lie behind the input.
      piece.out = buffer() + (in_staged_ && !shares_memory() ? in_.parts * most_ * size : 0);
      piece.out_stride = most_;
    }
    return piece;
  }

  void end(const Operation& piece, std::size_t first, std::size_t count) {
    if (!out_staged_) return;
    copy(whole_.out + first * size_of(whole_.dtype), out_.stride, piece.out, most_, out_.parts, count);
  }

 private:
  // A whole that is reduced to the place it came from. Other kinds have room for both.
  bool shares_memory() const { return !has_parts(whole_.kind) || whole_.in == whole_.out; }

  std::byte* buffer() {
    if (comm_.staging.bytes() == 0) comm_.staging = comm_.engine->allocate(kStagingBytes);
    return comm_.staging.data();
  }

  void copy(std::byte* to, std::size_t to_stride, const std::byte* from, std::size_t from_stride, std::size_t parts,
            std::size_t count) {
    const std::size_t size = size_of(whole_.dtype);
    for (std::size_t part = 0; part < parts; ++part) {
      copy_bytes(to + part * to_stride * size, from + part * from_stride * size, count * size);
      comm_.bytes_copied += count * size;
    }
  }

  Comm::State& comm_;
  const Operation& whole_;
  const StagedLayout in_, out_;
  const bool in_staged_, out_staged_;
  const std::size_t most_;
};

/// Memory for elements that the engine reaches, or none.
Buffer buffer_for(Comm::State& comm, const Operation& operation, std::size_t elements) {
  if (elements == 0) return {};
  return comm.engine->allocate(elements * size_of(operation.dtype));
}

}  // namespace

StagedOperation::StagedOperation(Comm::State& comm, const Operation& operation)
    : comm_(comm), wanted_(operation), staged_(operation) {
  const std::size_t in = in_extent(operation, comm.rank, comm.world_size);
  const std::size_t out = out_extent(operation, comm.rank, comm.world_size);
  const bool in_place = operation.in == operation.out;
  in_ = buffer_for(comm, operation, in_place ? std::max(in, out) : in);
  if (!in_place) out_ = buffer_for(comm, operation, out);
  staged_.in = in_.data();
  staged_.out = in_place ? in_.data() : out_.data();
  copy_parts(in_.data(), operation.in, in_layout(operation, comm), in);
}

void StagedOperation::finish() {
  if (finished_) return;
  finished_ = true;
  copy_parts(wanted_.out, staged_.out, out_layout(wanted_, comm_), out_extent(wanted_, comm_.rank, comm_.world_size));
}

// What lies between parts is not the operation's. Uneven ones lie side by side.
void StagedOperation::copy_parts(std::byte* to, const std::byte* from, StagedLayout layout, std::size_t extent) {
  const std::size_t size = size_of(wanted_.dtype);
  const bool apart = wanted_.counts.empty() && layout.parts > 1 && layout.stride != wanted_.count;
  const std::size_t parts = apart ? layout.parts : 1, stride = layout.stride * size;
  const std::size_t bytes = (apart ? wanted_.count : extent) * size;
  for (std::size_t part = 0; part < parts; ++part) copy_bytes(to + part * stride, from + part * stride, bytes);
  comm_.bytes_copied += parts * bytes;
}

namespace staged {

bool reaches_operands(const Comm::State& comm, const Operation& operation, Algorithm chosen) {
  if (chosen == Algorithm::OneShot || comm.engine->reaches_all()) return true;
  return reaches_in(comm, operation) && reaches_out(comm, operation);
}

void run(Comm::State& comm, const Operation& operation) {
  const Algorithm chosen = comm.engine->algorithm(operation);
  if (chosen == Algorithm::OneShot || comm.engine->reaches_all()) {
    comm.run(operation, chosen);
    return;
  }
  if (!operation.counts.empty()) {  // what lies elsewhere on one rank is no other's affair
    if (reaches_operands(comm, operation, chosen)) {
      comm.run(operation, chosen);
      return;
    }
    StagedOperation copies(comm, operation);
    comm.run(copies.operation(), chosen);
    return copies.finish();
  }
  // The first piece is called with the whole's count: if all ranks have all of it there, it is the only one.
  Pieces pieces(comm, operation);
  std::size_t count = pieces.staged() ? std::min(pieces.most(), operation.count) : operation.count;
  Operation piece = pieces.begin(0, count);
  piece.count = operation.count;
  piece.reach = pieces.staged() ? count : 0;
  std::size_t done = comm.engine->carried_out(comm.run(piece, chosen));
  pieces.end(piece, 0, done);
  while (done < operation.count) {
    count = std::min(pieces.most(), operation.count - done);
    piece = pieces.begin(done, count);
    comm.run(piece, comm.engine->algorithm(piece));
    pieces.end(piece, done, count);
    done += count;
  }
}

}  // namespace staged
}  // namespace paceline
