#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/base/error.h"
#include "paceline/comm/operation.h"

namespace paceline {

/// Where a Buffer's memory is. One value today; GPU engines add theirs.
enum class Device : std::uint8_t { Host };

/// Memory that the engine can communicate from without a copy. Move-only; freed when it dies, or once the operations
/// that are under way then are complete. Zeroed, and aligned to 64 bytes.
class Buffer {
 public:
  using Free = void (*)(void* owner, std::byte* data, std::size_t bytes) noexcept;

  Buffer() = default;
  Buffer(std::byte* data, std::size_t bytes, std::shared_ptr<void> owner, Free free)
      : data_(data), bytes_(bytes), owner_(std::move(owner)), free_(free) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer() {
    if (free_ != nullptr) free_(owner_.get(), data_, bytes_);
  }

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return Device::Host; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(owner_, other.owner_);
    std::swap(free_, other.free_);
  }

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::shared_ptr<void> owner_;
  Free free_ = nullptr;
};

/// When an operation was launched here, entered by the last rank, and complete.
struct OperationTiming {
  Nanoseconds launched, last_arrival, completed;
  Nanoseconds working;  ///< How long this rank moved and added up its share; 0 where the engine does not know.
};

/// What the system knows about the connection to a peer (TCP_INFO).
struct LinkInfo {
  int peer;  ///< Its rank in the communicator.
  std::string address;
  double round_trip_s;
  std::uint32_t retransmits;  ///< Segments sent again so far.
  std::uint64_t bytes_sent, bytes_received;
};

/// Carries operations out. One engine serves one communicator, from one thread at a time; operations complete in the
/// order they were started, which is the same on all ranks.
///
/// Errors: every method but abort() throws the engine's first failure again once it has failed.
class Engine {
 public:
  virtual ~Engine() = default;

  /// What this engine is, for messages and reports, e.g. "shm".
  virtual const char* name() const = 0;
  virtual Buffer allocate(std::size_t bytes) = 0;
  /// True if operands may lie anywhere; otherwise they must lie where reaches() says so, but for one-shot
  /// operations. The same on all ranks.
  virtual bool reaches_all() const = 0;
  virtual bool reaches(const void* data, std::size_t bytes) const = 0;
  /// What carries this operation out, where it may choose. Throws InvalidArgument for one that it does not have, or not
  /// for such an operation.
  virtual Algorithm algorithm(const Operation& operation) const = 0;
  /// What memory of allocate() is to other ranks: its place in this rank's memory.
  virtual std::uint64_t offset_of(const std::byte* /*memory*/) const { return 0; }
  /// The address here of the `bytes` that `rank` has at `offset`; nullptr if it has no such memory, or ranks do not see
  /// each other's.
  virtual std::byte* at_peer(int /*rank*/, std::uint64_t /*offset*/, std::size_t /*bytes*/) const { return nullptr; }
  /// Starts an operation and returns its number, 1 for the first. `chosen` is what algorithm() says of it. Does not
  /// wait for peers (except when very many operations are outstanding). Operands must be reachable and stay untouched
  /// until it completes.
  virtual std::uint64_t start(const Operation& operation, Algorithm chosen) = 0;
  /// start() and wait(): an engine with a thread of its own then leaves that alone.
  virtual std::uint64_t run(const Operation& operation, Algorithm chosen) {
    const std::uint64_t number = start(operation, chosen);
    wait(number);
    return number;
  }
  /// True once the operation of this number is complete here. Does this rank's share of outstanding work if it can be
  /// done at once.
  virtual bool test(std::uint64_t operation) = 0;
  /// Blocks until it is complete. Throws Timeout, PeerLost, Mismatch or Aborted.
  virtual void wait(std::uint64_t operation) = 0;
  /// Of a complete operation: the elements of the whole, or of each part, that were carried out. All, unless a rank's
  /// operands held less (Operation::reach). Known for the last 64.
  virtual std::size_t carried_out(std::uint64_t operation) const = 0;
  /// Of a complete operation. What untimed ranks did is left out. Throws InvalidArgument for one that is not among the
  /// last 64 started.
  virtual OperationTiming timing(std::uint64_t operation) const = 0;
  /// The connections that there are; none in shared memory. From any thread; throws System.
  virtual std::vector<LinkInfo> links() const { return {}; }
  /// Throws the engine's failure, if it has one, whichever rank it came from.
  virtual void check() const = 0;
  /// Makes the engine fail with `cause` on all ranks, whatever they wait for. May be called from any thread.
  virtual void abort(const Error& cause) noexcept = 0;
};

}  // namespace paceline
