#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "paceline/base/dtype.h"
#include "paceline/base/kernels.h"

namespace paceline {

enum class Collective : std::uint8_t {
  AllReduce,
  ReduceScatter,
  AllGather,
  Broadcast,
  Barrier,
  Reduce,
  Gather,
  Scatter,
  AllToAll,
};

const char* to_string(Collective collective);

/// How an operation is carried out. Engines choose (Auto) and refuse what they do not have.
enum class Algorithm : std::uint8_t {
  Auto,
  OneShot,  ///< Inputs ride with what ranks tell each other first, every rank reduces all of it for itself. Up to 1 KiB
            ///< in shared memory, 64 KiB for all of a rank's peers over TCP.
  Slices,   ///< Shared memory: rank r reduces slice r from all ranks' memory to all ranks' memory.
  ChunkQueue,    ///< Shared memory: the same by chunks, each done by whichever rank is awake.
  Direct,        ///< Messages: slices to their owners, which add them up in rank order, and back.
  Ring,          ///< Messages: slices go round and are added up on the way.
  Hierarchical,  ///< Shared memory inside hosts, messages from one to the next, in rank order.
};

const char* to_string(Algorithm algorithm);

/// One collective call of one rank. What ranks must agree on is marked (=); a difference is a Mismatch on all of them.
///
/// Operands, for N ranks. "Whole" is `count` elements; "parts" are N parts of `count` elements each, in rank order:
///
/// | kind          | in                     | out                    | in place: in ==                      |
/// |---------------|------------------------|------------------------|--------------------------------------|
/// | AllReduce     | whole                  | whole                  | out                                  |
/// | Reduce        | whole                  | whole, on the root     | out                                  |
/// | Broadcast     | whole, on the root     | whole                  | out, always                          |
/// | ReduceScatter | parts                  | this rank's part       | (out == this rank's part of in)      |
/// | AllGather     | this rank's part       | parts                  | this rank's part of out              |
/// | Gather        | this rank's part       | parts, on the root     | the root's part of out               |
/// | Scatter       | parts, on the root     | this rank's part       | (root: out == its own part of in)    |
/// | AllToAll      | parts, q for rank q    | parts, q from rank q   | out; not with uneven parts           |
///
/// Other overlaps of in and out are not allowed.
struct Operation {
  Collective kind = Collective::Barrier;  ///< (=)
  Dtype dtype = Dtype::UInt8;             ///< (=)
  ReduceOp reduce = ReduceOp::Sum;        ///< (=) AllReduce, ReduceScatter, Reduce
  Algorithm algorithm = Algorithm::Auto;  ///< (=)
  int root = 0;                           ///< (=) Reduce, Broadcast, Gather, Scatter
  std::size_t count = 0;                  ///< (=) Elements, see above. Not used with uneven parts.
  /// (=) Where a call is carried out in pieces: `count` of the whole of it. 0 means `count`.
  std::size_t call_count = 0;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  /// Uneven parts: the elements of each rank's part, in rank order; empty where all have `count`. (=) but for AllToAll,
  /// where they are what this rank sends to each, and `receive_counts` what it gets from each: the same as that rank
  /// sends. Both live as long as the operation.
  std::span<const std::size_t> counts = {};
  std::span<const std::size_t> receive_counts = {};
  /// Elements between the beginnings of two parts, where they do not lie side by side. 0 means `count`. Not with uneven
  /// parts.
  std::size_t in_stride = 0, out_stride = 0;
  /// Elements of the whole, or of each part, that the operands hold; 0 means all. If it is less on any rank, only the
  /// least of them are carried out on all ranks (Engine::carried_out()); the rest is another operation. Not with uneven
  /// parts, and not for users: Comm sets it.
  std::size_t reach = 0;
  double weight = 1;       ///< This rank's share of a Mean, 0 or more; may differ between ranks.
  const char* label = "";  ///< Stands in error messages and traces, e.g. "bucket 2". Lives as long as the operation.
  bool started = false;    ///< (=) By Comm::start() rather than by a blocking call. Comm sets it.
  bool timed = false;      ///< Note when ranks came and went, for Engine::timing(). Costs two looks at the clock.
};

inline bool reduces(Collective kind) {
  return kind == Collective::AllReduce || kind == Collective::ReduceScatter || kind == Collective::Reduce;
}
inline bool has_root(Collective kind) {
  return kind == Collective::Broadcast || kind == Collective::Reduce || kind == Collective::Gather ||
         kind == Collective::Scatter;
}
inline bool has_parts(Collective kind) {
  return kind == Collective::ReduceScatter || kind == Collective::AllGather || kind == Collective::Gather ||
         kind == Collective::Scatter || kind == Collective::AllToAll;
}

/// Where parts lie and how large they are, in elements; for kinds with parts.
std::size_t in_part_count(const Operation& operation, int part);
std::size_t out_part_count(const Operation& operation, int part);
std::size_t in_part_begin(const Operation& operation, int part);
std::size_t out_part_begin(const Operation& operation, int part);

/// Elements from the first to the last of this rank's operands; 0 where it has none.
std::size_t in_extent(const Operation& operation, int rank, int world_size);
std::size_t out_extent(const Operation& operation, int rank, int world_size);

/// Throws InvalidArgument, saying why, if this rank could not carry it out whatever the others call: root, uneven
/// parts, sizes that no memory has, null operands, overlaps, weights.
void check_operation(const Operation& operation, int rank, int world_size);

}  // namespace paceline
