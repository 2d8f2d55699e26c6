#pragma once

#include <optional>
#include <vector>

#include "paceline/comm/engine.h"
#include "paceline/comm/message/direct.h"
#include "paceline/comm/message/hierarchical.h"
#include "paceline/comm/message/ring.h"
#include "paceline/comm/message/transport.h"

namespace paceline {

/// The collectives over messages. First every rank tells every other one what it calls, so that a difference is found
/// before anything is combined. Small messages are sent along with that, and the operation is complete after one round.
/// Otherwise the data follow: each message straight to its receiver (gather, scatter, all-gather, all-to-all), or in
/// slices (TwoStep: all-reduce, reduce, broadcast, reduce-scatter), or round a Ring.
///
/// Where hosts have several ranks, large all-reduces go inside the hosts first (Hierarchical).
///
/// All sums but the ring's are taken in rank order, and have the same bits as in shared memory.
class MessageCollectives {
 public:
  /// `preferred` is how large all-reduces are carried out that say Auto: Direct or Ring, or Auto for Hierarchical where
  /// there is a `hosts`, else Direct; the same on all ranks. `hosts` may be null, and outlives this.
  explicit MessageCollectives(Transport& transport, Algorithm preferred = Algorithm::Auto,
                              const HostGroup* hosts = nullptr);

  /// OneShot, Direct, Ring or Hierarchical. Throws InvalidArgument for what an operation asks for in vain.
  Algorithm algorithm(const Operation& operation) const;

  struct Outcome {
    std::size_t carried_out;   ///< As Engine has it.
    Nanoseconds last_arrival;  ///< When the last rank was seen to enter the operation; 0 where it is not timed.
  };
  /// Blocks. `chosen` is what algorithm() says.
  Outcome run(const Operation& operation, Algorithm chosen, std::uint64_t number, const WaitPolicy& wait_policy);

 private:
  using Bytes = std::span<const std::byte>;

  bool is_small(const Operation& operation) const;
  void enter(const Operation& operation, std::uint64_t number, bool eager, const WaitPolicy& wait_policy);
  void compare_signatures() const;
  void compare_parts(const Operation& operation, const WaitPolicy& wait_policy) const;
  std::size_t least_reach(const Operation& operation) const;
  void note_weights(const Operation& operation);

  Bytes message_to(const Operation& operation, int peer, std::size_t count) const;
  std::span<std::byte> place_of(const Operation& operation, int peer, std::size_t count) const;
  void keep_own_part(const Operation& operation, std::size_t count) const;
  const std::byte* eager_payload(int peer, std::size_t bytes) const;
  void reduce_eager_payloads(const Operation& operation, std::size_t count);
  void exchange_parts(const Operation& operation, std::size_t count, const WaitPolicy& wait_policy);
  void reduce_slices(const Operation& operation, std::size_t count, const WaitPolicy& wait_policy);
  void reduce_parts(const Operation& operation, std::size_t count, const WaitPolicy& wait_policy);
  void broadcast_slices(const Operation& operation, std::size_t count, const WaitPolicy& wait_policy);

  Transport& transport_;
  const Algorithm preferred_;
  const int rank_, world_size_;

  // Scratch, kept so that a steady step allocates nothing.
  std::vector<EagerPayload> eager_payloads_;
  std::vector<double> weights_;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte> slice_;
  TwoStep two_step_;
  Ring ring_;
  std::optional<Hierarchical> chain_;
};

/// Memory for engines that reach all of it.
Buffer allocate_on_heap(std::size_t bytes);

}  // namespace paceline
