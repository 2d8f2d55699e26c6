#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/base/timeline.h"
#include "paceline/comm/engine.h"
#include "paceline/comm/tcp/options.h"

namespace paceline {

class JobStatus;
class StagedOperation;
class Store;

struct CommOptions {
  /// How long a wait lasts without a peer showing up before it is a Timeout. Ranks may be apart by this much: raise it
  /// where one rank works alone for long. A peer whose process dies is noticed at once, whatever stands here.
  Nanoseconds timeout = std::chrono::seconds(300);
  /// The job status of this host, where waits learn why the job failed. Comm::from_env() sets it.
  std::shared_ptr<const JobStatus> job_status = nullptr;
};

/// A group of workers that call the same collectives in the same order, each with its rank. Cheap to copy: copies are
/// the same communicator.
///
/// Used from one thread at a time, which may be another one at each call: a call while another thread is in one, its
/// waits included, throws InvalidArgument and does nothing. Threads that communicate at the same time need one each, of
/// duplicate(); in a training step all of them belong to the training thread, since they share its timeline. abort()
/// may come from any thread.
///
/// A child process that fork() makes has no part in the job: there calls throw InvalidArgument, and destructors of this
/// and of all that was made from it leave alone what is the parent's.
///
/// All collectives block until this rank's part of the result is there, and are no-ops in a world of one. Ranks must
/// agree on operation, element type, count, reduction and root; if they do not, all of them throw Mismatch, naming two
/// that differ, and nothing is combined. After an error other than InvalidArgument the communicator is dead.
class Comm {
 public:
  struct State;  // comm_state.h; not for users
  using Counts = std::span<const std::size_t>;

  /// The communicator of all workers of this job, from the environment that `paceline run` sets (docs/environment.md).
  /// World size 1 when started alone. Blocks until all workers are there. It may be called again: each rank's n-th call
  /// meets the others' n-th, and gives a communicator of its own, also in one program after another. Not in a child
  /// of a process that has joined.
  /// Throws InvalidArgument for an environment that contradicts itself, Timeout naming the ranks that are missing,
  /// PeerLost if one ended before it joined.
  static Comm from_env();
  /// A communicator of one.
  static Comm solo();
  /// The communicator of rank `rank` of `world_size` that meet in `store` under `name`; all on this host, in processes
  /// of their own.
  static Comm over_shared_memory(const std::shared_ptr<Store>& store, const std::string& name, int rank, int world_size,
                                 const CommOptions& options = {});

  /// The same over TCP, between hosts or on one. `tcp` says where to listen and who is let in. Throws as from_env()
  /// does.
  static Comm over_tcp(const std::shared_ptr<Store>& store, const std::string& name, int rank, int world_size,
                       const TcpOptions& tcp = {}, const CommOptions& options = {});

  /// Over whatever fits where the ranks are, which they find out by trying to map each other's memory: shared memory
  /// where all share a host, TCP where each has its own, both where hosts have several. Throws as from_env() does.
  static Comm over_hosts(const std::shared_ptr<Store>& store, const std::string& name, int rank, int world_size,
                         const TcpOptions& tcp = {}, const CommOptions& options = {});

  explicit Comm(std::shared_ptr<State> state) : state_(std::move(state)) {}

  int rank() const;
  int world_size() const;
  /// What carries the operations, e.g. "shm"; "solo" in a world of one.
  const char* engine_name() const;
  /// What the training thread of this rank is doing; shared by all communicators made from one another.
  Timeline& timeline() const;

  /// The seed that paceline::seed() was given, which wrapped modules make random streams from.
  std::optional<std::uint64_t> seed() const;
  void set_seed(std::uint64_t seed) const;

  /// Memory that is reduced without being copied first. Not collective. Throws System when there is not enough; the
  /// communicator lives on.
  Buffer allocate(std::size_t bytes) const;

  /// Collective. Where each rank's `memory`, of its allocate(), lies in this process, in rank order; nullptr where
  /// ranks do not see each other's memory. As long as that buffer and this communicator live. For measurements: no
  /// collective orders what is read and written there.
  std::vector<std::byte*> map_peers(std::byte* memory) const;

  // The collectives. Memory of allocate() is communicated from where it lies; other memory is copied through a buffer,
  // which bytes_copied() counts. `in` and `out` may be the same memory where operation.h says "in place".
  // For a root's operand, other ranks pass an empty span.

  /// Reduces in place.
  template <class T>
  void all_reduce(std::span<T> data, ReduceOp op = ReduceOp::Sum) const {
    all_reduce(dtype_of<T>(), std::as_bytes(data), std::as_writable_bytes(data), op);
  }
  template <class T>
  void all_reduce(std::span<const T> in, std::span<T> out, ReduceOp op = ReduceOp::Sum) const {
    all_reduce(dtype_of<T>(), std::as_bytes(in), std::as_writable_bytes(out), op);
  }
  /// Gives the reduced values to `root` only.
  template <class T>
  void reduce(std::span<const T> in, std::span<T> out, int root, ReduceOp op = ReduceOp::Sum) const {
    reduce(dtype_of<T>(), std::as_bytes(in), std::as_writable_bytes(out), root, op);
  }
  /// Reduces `in`, which has world_size parts of out.size() elements, and gives part `rank` to each rank. With `counts`
  /// (one a rank, the same on all ranks), parts have these sizes; so it is below.
  template <class T>
  void reduce_scatter(std::span<const T> in, std::span<T> out, ReduceOp op = ReduceOp::Sum, Counts counts = {}) const {
    reduce_scatter(dtype_of<T>(), std::as_bytes(in), std::as_writable_bytes(out), op, counts);
  }
  /// Gives the parts of all ranks, in rank order, to each rank: out.size() == world_size * in.size().
  template <class T>
  void all_gather(std::span<const T> in, std::span<T> out, Counts counts = {}) const {
    all_gather(dtype_of<T>(), std::as_bytes(in), std::as_writable_bytes(out), counts);
  }
  template <class T>
  void broadcast(std::span<T> data, int root = 0) const {
    broadcast(dtype_of<T>(), std::as_writable_bytes(data), root);
  }
  /// Gives the parts of all ranks, in rank order, to `root`.
  template <class T>
  void gather(std::span<const T> in, std::span<T> out, int root, Counts counts = {}) const {
    gather(dtype_of<T>(), std::as_bytes(in), std::as_writable_bytes(out), root, counts);
  }
  /// Gives part `rank` of what `root` has to each rank.
  template <class T>
  void scatter(std::span<const T> in, std::span<T> out, int root, Counts counts = {}) const {
    scatter(dtype_of<T>(), std::as_bytes(in), std::as_writable_bytes(out), root, counts);
  }
  /// Gives part q of `in` to rank q, whose part lies at q in `out`. Uneven parts: `send_counts` are this rank's, one a
  /// rank, and `receive_counts` what those send to it.
  template <class T>
  void all_to_all(std::span<const T> in, std::span<T> out, Counts send_counts = {}, Counts receive_counts = {}) const {
    all_to_all(dtype_of<T>(), std::as_bytes(in), std::as_writable_bytes(out), send_counts, receive_counts);
  }
  void barrier() const;

  /// The same for element types known at run time; sizes in bytes.
  void all_reduce(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out, ReduceOp op) const;
  void reduce(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out, int root, ReduceOp op) const;
  void reduce_scatter(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out, ReduceOp op,
                      Counts counts = {}) const;
  void all_gather(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out, Counts counts = {}) const;
  void broadcast(Dtype dtype, std::span<std::byte> data, int root) const;
  void gather(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out, int root, Counts counts = {}) const;
  void scatter(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out, int root,
               Counts counts = {}) const;
  void all_to_all(Dtype dtype, std::span<const std::byte> in, std::span<std::byte> out, Counts send_counts = {},
                  Counts receive_counts = {}) const;
  /// What would carry it out, where the engine may choose; Auto in a world of one, which has nothing to choose. Throws
  /// InvalidArgument for an algorithm that the engine does not have, or not for such an operation.
  Algorithm algorithm(const Operation& operation) const;
  /// Any of them, as an Operation.
  void run(const Operation& operation) const;

  /// Bytes that this rank has copied so far because operands did not lie in memory of allocate().
  std::uint64_t bytes_copied() const;

  /// The mean over all ranks' samples: sum(weight * value) / sum(weight). With `weight` the number of samples that
  /// `value` is the mean of, the result is what one process over all samples would find.
  double mean(double value, double weight = 1) const;
  double sum(double value) const;
  /// The texts of all ranks, in rank order, on every rank. Lengths may differ.
  std::vector<std::string> gather(const std::string& text) const;

  /// An operation under way. A small value; the Comm it came from must outlive it.
  class Work {
   public:
    Work() = default;
    /// True once it is complete; at once in a world of one.
    bool test();
    /// Blocks; throws as the blocking collectives do.
    void wait();
    /// After completion, of a timed operation; zeros in a world of one. Throws InvalidArgument once 64 more were
    /// started.
    OperationTiming timing() const;

   private:
    friend class Comm;
    Work(State* state, std::uint64_t number, std::uint64_t status_sequence)
        : state_(state), number_(number), status_sequence_(status_sequence) {}
    State* state_ = nullptr;
    std::uint64_t number_ = 0, status_sequence_ = 0;
    std::uint64_t timed_bytes_ = 0;  // that are still to be recorded, of a timed operation
    const char* label_ = "";
    std::shared_ptr<StagedOperation> staged_;
  };

  /// Starts an operation and returns without waiting for peers; all ranks start it, or all block. The operands stay
  /// untouched until it completes, and its label lives as long. Within a training step the timeline gets a `timed`
  /// operation when it is waited for. Operands in memory of allocate(), or of an engine that reaches all memory, are
  /// communicated from where they lie; others are copied, through a buffer of their size.
  Work start(const Operation& operation) const;

  /// Collective. Ranks that give the same `color` form a new communicator, ordered by (key, rank).
  Comm split(int color, int key = 0) const;
  /// Collective. A communicator of the same ranks, whose operations are apart from this one's.
  Comm duplicate() const;

  /// Tells whoever watches the job (`paceline ps`) which training step this rank is in, 1 for the first. The reducer
  /// does it. Not collective.
  void set_step(std::uint64_t step) const;

  /// What the system knows about this rank's connections, those of communicators made from this one included; none in
  /// shared memory. Throws System.
  std::vector<LinkInfo> links() const;

  /// Makes `cause` the communicator's failure on all ranks, unless it has one, and throws its failure.
  [[noreturn]] void fail(const Error& cause) const;
  /// Makes this communicator, those made from it, and all ranks that wait in them fail with Aborted and this reason.
  /// From any thread.
  void abort(const std::string& reason) const noexcept;

 private:
  void require_extents(const Operation& operation, std::span<const std::byte> in, std::span<std::byte> out) const;

  std::shared_ptr<State> state_;
};

}  // namespace paceline
