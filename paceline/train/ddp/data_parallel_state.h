#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "paceline/sync/reducer.h"
#include "paceline/train/data_parallel.h"
#include "paceline/train/ddp/backward_watch.h"
#include "paceline/train/ddp/bucket_allocator.h"
#include "paceline/train/ddp/gradient_hooks.h"
#include "paceline/train/ddp/shared_parameters.h"
#include "paceline/train/replica.h"
#include "paceline/train/sync_batch_norm.h"

namespace paceline {

/// Between libtorch's hooks and the reducer: where gradients lie, and when a backward begins and ends.
struct DistributedDataParallel::State {
  State(torch::nn::Module& module, const Comm& with, DataParallelOptions options);
  ~State();

  // The gradient's way (gradient_round.cpp), in the order in which it happens.
  void on_node();
  void on_gradient(std::size_t index, const torch::Tensor& given);
  void begin_backward(std::size_t index);
  bool may_come_again(std::size_t index);
  void begin_round(std::uint32_t flags);
  void keep_gradient(std::size_t index);
  void take_gradient(std::size_t index);
  void divide(const BucketPiece& piece);
  void note_not_finite(const BucketPiece& piece, Dtype sent_as, std::span<const std::byte> sent);
  bool backward_runs() const { return end_queued && token.use_count() > 1; }
  void end_backward();
  void average();
  void finish_round();
  void contribute_accumulated();
  void contribute_absent(std::size_t index);
  void give_back_result(std::size_t index);

  // Where gradients lie (gradient_slots.cpp).
  void bind_slot(std::size_t index);
  void bind_slots();
  void move_gradients();
  bool is_in_slot(std::size_t index) const;
  bool is_laid_out_like_slot(std::size_t index) const;
  void recognize_slot(std::size_t index, const torch::Tensor& given);
  std::shared_ptr<std::byte> lend(std::size_t bytes);
  void reclaim_slot(std::size_t index);
  void bring_to_slot(std::size_t index);
  void leave_to_holders(std::size_t index);
  void keep_dense();
  void look_at_gradients();
  void forget_cleared();

  // What the ranks decide in a round, by what all of them said (outcome.cpp).
  void judge();
  bool judge_uneven();
  int first_active() const;
  void judge_finite(bool dropped);
  void drop_gradients();
  void look_for_not_finite();
  void take_state_hash(std::uint32_t flags);
  void compare_replicas();
  std::uint64_t changes_of_parameters();

  void sync_buffers(Buffers how, int root, double weight);  // buffers.cpp
  std::unique_ptr<BucketReduction> make_reduction();
  GradientOwner owner();
  void connect_batch_norms(torch::nn::Module& module);
  void require_generator_of_its_own();
  std::string explain() const;  // explain.cpp

  // What a closure returns (closure_loss.cpp).
  torch::Tensor evaluate(const std::function<torch::Tensor()>& closure);
  torch::Tensor reduce_loss(const torch::Tensor& loss);
  void take_part_in_loss();
  bool losses_follow() const;

  // Ranks whose data end early (uneven.cpp).
  void join();
  void require_all_ended();
  void adopt_state(int root);

  // What must not be (gradient_checks.cpp).
  std::uint64_t require_averaged(std::uint64_t since, const torch::optim::Optimizer& optimizer);
  void require_fresh(std::size_t index);
  void require_no_graph(std::size_t index);
  void require_not_sent(std::size_t index);
  void require_unchanged(std::size_t but);
  std::uint64_t probe(std::size_t index) const;
  bool was_cleared(std::size_t index) const;
  void require_watched();
  void require_equal_backwards();
  void require_still_frozen();
  [[noreturn]] void fail(ErrorCode code, const std::string& what);
  [[noreturn]] void fail_abandoned();
  [[noreturn]] void fail_changed(const std::string& name);

  const Comm comm;  // its own: models whose backwards interleave must not mix
  const DataParallelOptions options;
  const std::chrono::system_clock::time_point started = std::chrono::system_clock::now();
  const Replica replica;
  const std::unordered_set<const c10::TensorImpl*> known;  // its parameters
  const std::vector<NamedTensor> trained;
  const SharedParameters shared;              // of these, with a model that was wrapped before
  const std::vector<NamedTensor> parameters;  // the others: those whose gradients are averaged here
  /// A world of one leaves gradients where libtorch puts them, unless they are to be changed on the way.
  const bool uses_slots;
  Reducer reducer;
  std::vector<torch::Tensor> slots;  // what grad() is, by parameter
  /// By parameter: the memory of its slot, for libtorch to compute the gradient in, if it has a bucket of its own. Held
  /// by others too as long as it is lent.
  std::vector<std::shared_ptr<std::byte>> lendable;
  std::vector<std::pair<std::size_t, std::size_t>> lending_order;  // bytes and index of these, as they are expected
  Recorder recorder;

  // Of the backward that runs.
  bool in_backward = false;
  bool averages = false;  // or only accumulates
  bool end_queued = false;
  /// What is queued for the end of the outermost backward holds this too, until that ends, however it does.
  const std::shared_ptr<char> token = std::make_shared<char>();
  std::vector<std::size_t> arrivals;  // parameters in the order in which they first came
  std::vector<std::uint8_t> arrived;  // the same by parameter
  /// By parameter: it has come more than once in a backward, or in one inside another, and may do so again.
  std::vector<std::uint8_t> comes_again;

  // Of what has been accumulated since the last round.
  std::uint32_t backwards = 0;
  double weight = 0;                  // the sum of theirs
  std::vector<std::uint8_t> pending;  // by parameter: grad() holds what is not averaged yet
  int no_syncs = 0;                   // that live
  std::size_t accumulate = 1;
  std::optional<double> next_weight;
  bool is_read = true;                                        // of what this rank sends off
  double divisor = 1;                                         // Weighted: of what this rank sends off
  std::vector<std::uint64_t> probes;                          // of gradients that hold what was accumulated
  std::vector<std::uint32_t> versions;                        // Sum, Weighted: of gradients when they were averaged
  std::vector<std::uint8_t> users_own;                        // by parameter: grad() is memory that the user put there
  std::vector<torch::Tensor> set_aside;                       // by parameter: such memory, of a step that was dropped
  std::vector<std::pair<std::size_t, torch::Tensor>> absent;  // of this round, with the gradient that was there

  std::vector<std::size_t> absent_here;  // of the last round

  RoundEnd end;                     // what this rank will say of the round
  std::uint64_t versions_seen = 0;  // of all parameters, when the last round began
  std::uint64_t skipped = 0;
  std::uint64_t rounds_before = 0;  // load()

  bool stop_requested = false, stop_agreed = false;
  bool ended_early = false;  // since the last join, some rank
  int last_active = 0;       // one that had data in the last round in which any had

  bool loss_follows = false;  // a closure runs, whose loss is exchanged when it returns

  std::vector<torch::optim::Optimizer*> optimizers;

  std::vector<std::shared_ptr<SyncBatchNormImpl>> batch_norms;
  std::shared_ptr<const SyncBatchNormImpl::Link> batch_norm_link;

  GradientHooks hooks;
  BackwardWatch watch;
  std::optional<MemoryLender> lender;
};

}  // namespace paceline
