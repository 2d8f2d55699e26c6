#include "paceline/train/data_parallel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <optional>

#include "paceline/base/enumerator.h"
#include "paceline/base/random_bytes.h"
#include "paceline/sync/exact_reduction.h"
#include "paceline/sync/reducer.h"
#include "paceline/sync/rounded_reduction.h"
#include "paceline/sync/step_decisions.h"
#include "paceline/train/ddp/backward_watch.h"
#include "paceline/train/ddp/data_parallel_state.h"
#include "paceline/train/ddp/hook_reduction.h"
#include "paceline/train/ddp/replica_comparison.h"

namespace paceline {
namespace {

const char* to_string(Reduction reduction) {
  switch (reduction) {
    case Reduction::Mean: return "Reduction::Mean";
    case Reduction::Sum: return "Reduction::Sum";
    case Reduction::Weighted: return "Reduction::Weighted";
  }
  return "unknown";
}

std::vector<NamedTensor> trainable(const Replica& replica) {
  std::vector<NamedTensor> result;
  for (const NamedTensor& parameter : replica.parameters) {
    if (parameter.tensor.requires_grad()) result.push_back(parameter);
  }
  return result;
}

std::unordered_set<const c10::TensorImpl*> implementations(const std::vector<NamedTensor>& tensors) {
  std::unordered_set<const c10::TensorImpl*> result;
  for (const NamedTensor& named : tensors) result.insert(named.tensor.unsafeGetTensorImpl());
  return result;
}

std::vector<NamedTensor> averaged_here(const std::vector<NamedTensor>& trained, const SharedParameters& shared,
                                       const std::string& model) {
  if (trained.empty()) {
    throw Error(ErrorCode::InvalidArgument, "the module has no parameter that requires a gradient");
  }
  std::vector<NamedTensor> result = shared.others(trained);
  if (result.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("each trained parameter of model '{}', '{}' first of all, belongs to a model that is "
                            "wrapped already, which averages its gradient; use that wrapper, or destroy it first",
                            model, trained[0].name));
  }
  return result;
}

std::vector<ParameterInfo> infos(const std::vector<NamedTensor>& parameters) {
  std::vector<ParameterInfo> result;
  result.reserve(parameters.size());
  for (const NamedTensor& p : parameters) {
    result.push_back({p.name, static_cast<std::size_t>(p.tensor.numel()), gradient_dtype(p)});
  }
  return result;
}

std::vector<torch::Tensor> tensors(const std::vector<NamedTensor>& parameters) {
  std::vector<torch::Tensor> result;
  result.reserve(parameters.size());
  for (const NamedTensor& p : parameters) result.push_back(p.tensor);
  return result;
}

void require_valid(const DataParallelOptions& options) {
  require_enumerator("the option reduction", options.reduction, Reduction::Weighted);
  require_enumerator("the option uneven", options.uneven, Uneven::Raise);
  require_enumerator("the option ended_ranks", options.ended_ranks, EndedRanks::CountAsZeros);
  require_enumerator("the option not_finite", options.not_finite, NotFinite::Unchecked);
  require_enumerator("the option buffers", options.buffers, Buffers::Average);
  require_enumerator("the option wire", options.wire, Wire::BFloat16);
}

// The checks come first: a reducer on ranks with different models would find out later and say less.
Replica checked_replica(const torch::nn::Module& module, const Comm& comm, const DataParallelOptions& options) {
  require_valid(options);
  Replica replica = Replica::of(module);
  require_same_replica(comm, replica, options.name,
                       fmt::format("options with buckets of {} bytes, {}, uneven {}, ended ranks {}, not finite {}, "
                                   "replicas checked every {}, buffers {}, wire {}{}",
                                   options.bucket_bytes, to_string(options.reduction), static_cast<int>(options.uneven),
                                   static_cast<int>(options.ended_ranks), static_cast<int>(options.not_finite),
                                   options.check_replicas_every, static_cast<int>(options.buffers),
                                   static_cast<int>(options.wire), SharedParameters(trainable(replica)).describe()));
  broadcast_replica(comm, replica, 0);
  return replica;
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module, const Comm& comm,
                                                 DataParallelOptions options)
    : state_(std::make_shared<State>(module, comm, std::move(options))) {}

DistributedDataParallel::~DistributedDataParallel() = default;

const Comm& DistributedDataParallel::comm() const { return state_->comm; }
const DataParallelOptions& DistributedDataParallel::options() const { return state_->options; }
Recorder& DistributedDataParallel::recorder() const { return state_->recorder; }
std::chrono::system_clock::time_point DistributedDataParallel::started() const { return state_->started; }

std::size_t DistributedDataParallel::parameter_count() const {
  std::size_t count = 0;
  for (const NamedTensor& parameter : state_->replica.parameters) {
    count += static_cast<std::size_t>(parameter.tensor.numel());
  }
  return count;
}

void DistributedDataParallel::set_weight(double weight) {
  if (state_->options.reduction != Reduction::Weighted) {
    throw Error(ErrorCode::InvalidArgument, "set_weight() is for models with Reduction::Weighted", comm().rank());
  }
  if (!std::isfinite(weight) || weight < 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a weight is a number of samples or tokens, 0 or more, not {}", weight), comm().rank());
  }
  state_->next_weight = weight;
}

DistributedDataParallel::NoSync DistributedDataParallel::no_sync() { return NoSync(state_); }
DistributedDataParallel::NoSync::NoSync(const std::shared_ptr<State>& state) : state_(state) { ++state->no_syncs; }
DistributedDataParallel::NoSync::~NoSync() {
  if (const auto state = state_.lock()) --state->no_syncs;
}

void DistributedDataParallel::accumulate(std::size_t backwards) {
  if (backwards == 0) {
    throw Error(ErrorCode::InvalidArgument, "accumulate(0): at least every backward must be counted", comm().rank());
  }
  state_->accumulate = backwards;
}

bool DistributedDataParallel::averaged() const {
  return !state_->in_backward && state_->backwards == 0 && state_->reducer.rounds() > 0 &&
         state_->shared.accumulated() == 0;
}

void DistributedDataParallel::average() { state_->average(); }

torch::Tensor DistributedDataParallel::evaluate(const std::function<torch::Tensor()>& closure) {
  return state_->evaluate(closure);
}

void DistributedDataParallel::join() { state_->join(); }
void DistributedDataParallel::request_stop() { state_->stop_requested = true; }
bool DistributedDataParallel::stop_agreed() const { return state_->stop_agreed; }
std::uint64_t DistributedDataParallel::skipped_rounds() const { return state_->skipped; }

void DistributedDataParallel::sync_buffers(Buffers how) { state_->sync_buffers(how, 0, 1); }
const char* DistributedDataParallel::codec() const { return state_->reducer.reduction().codec(); }
std::string DistributedDataParallel::explain() const { return state_->explain(); }

UnusedParameters DistributedDataParallel::unused() const {
  UnusedParameters names;
  for (const std::size_t index : state_->absent_here) {
    names.here.push_back(state_->parameters[index].name);
    if (!state_->reducer.took_part(index)) names.everywhere.push_back(state_->parameters[index].name);
  }
  return names;
}

void DistributedDataParallel::attach(torch::optim::Optimizer& optimizer) { state_->optimizers.push_back(&optimizer); }
void DistributedDataParallel::detach(torch::optim::Optimizer& optimizer) { std::erase(state_->optimizers, &optimizer); }
const std::vector<torch::optim::Optimizer*>& DistributedDataParallel::optimizers() const { return state_->optimizers; }
const Replica& DistributedDataParallel::replica() const { return state_->replica; }
const std::vector<NamedTensor>& DistributedDataParallel::trained() const { return state_->trained; }

std::uint64_t DistributedDataParallel::rounds() const { return state_->rounds_before + state_->reducer.rounds(); }
std::uint32_t DistributedDataParallel::accumulated() const {
  return std::max(state_->backwards, state_->shared.accumulated());
}
void DistributedDataParallel::resume_at(std::uint64_t done) {
  state_->drop_gradients();
  state_->shared.zero_gradients();
  state_->rounds_before = done - state_->reducer.rounds();
}

double DistributedDataParallel::total_weight() const { return members_of(state_->reducer.prologues()).weight; }

std::uint64_t DistributedDataParallel::require_averaged(std::uint64_t rounds_before,
                                                        const torch::optim::Optimizer& optimizer) const {
  return state_->require_averaged(rounds_before, optimizer);
}

DistributedDataParallel::State::State(torch::nn::Module& module, const Comm& with, DataParallelOptions how)
    : comm(with.duplicate()),
      options(std::move(how)),
      replica(checked_replica(module, comm, options)),
      known(implementations(replica.parameters)),
      trained(trainable(replica)),
      shared(trained),
      parameters(averaged_here(trained, shared, options.name)),
      uses_slots(comm.world_size() > 1 || options.reduction == Reduction::Weighted || options.reduce_bucket),
      reducer(comm, infos(parameters),
              {.bucket_bytes = options.bucket_bytes, .before_launch = [this](const BucketPiece& p) { divide(p); }},
              make_reduction()),
      recorder(comm.timeline(), {.rank = comm.rank(), .threads = at::get_num_threads()}),
      arrived(parameters.size()),
      comes_again(parameters.size()),
      pending(parameters.size()),
      probes(parameters.size()),
      versions(parameters.size()),
      users_own(parameters.size()),
      set_aside(parameters.size()),
      hooks(tensors(parameters), owner(),
            [this](std::size_t index, const torch::Tensor& given) { on_gradient(index, given); }),
      watch(comm.timeline(), [this] { on_node(); }) {
  shared.require_same_average(comm, options.reduction);
  bind_slots();
  changes_of_parameters();
  if (uses_slots) lender.emplace([this](std::size_t bytes) { return lend(bytes); });
  connect_batch_norms(module);
  require_generator_of_its_own();
  // From here on each rank draws its own dropout and augmentation.
  if (comm.seed())
    torch::manual_seed(*comm.seed() + 0x9E3779B97F4A7C15ull * static_cast<std::uint64_t>(comm.rank() + 1));
}

// The group is known to all its ranks by a number that one of them drew.
GradientOwner DistributedDataParallel::State::owner() {
  std::int64_t group = static_cast<std::int64_t>(random_number());
  comm.broadcast<std::int64_t>(std::span(&group, 1), 0);
  return {.model = options.name,
          .reduction = options.reduction,
          .world_size = comm.world_size(),
          .group = group,
          .accumulated = [this] { return std::max<std::uint32_t>(backwards, in_backward); }};
}

DistributedDataParallel::State::~State() {
  for (const auto& batch_norm : batch_norms) batch_norm->connect(nullptr);
  // Where an exception ends it, whoever catches that knows the reason. Comm keeps the other ranks waiting until then.
  if (reducer.in_round() && std::uncaught_exceptions() == 0) comm.abort("its model was destroyed during backward");
}

std::unique_ptr<BucketReduction> DistributedDataParallel::State::make_reduction() {
  const BeforeSend look = [this](const BucketPiece& piece, Dtype sent_as, std::span<const std::byte> sent) {
    note_not_finite(piece, sent_as, sent);
  };
  if (options.reduce_bucket) {
    return std::make_unique<HookReduction>(comm, options.reduction, options.reduce_bucket, look);
  }
  if (options.wire == Wire::AsIs || comm.world_size() == 1) return std::make_unique<ExactReduction>(comm, look);
  const Dtype wire = options.wire == Wire::Float16 ? Dtype::Float16 : Dtype::BFloat16;
  return std::make_unique<RoundedReduction>(comm, wire, look);
}

void DistributedDataParallel::State::connect_batch_norms(torch::nn::Module& module) {
  const auto add = [this](std::shared_ptr<SyncBatchNormImpl> found) {
    if (found && !found->connected()) batch_norms.push_back(std::move(found));  // or it is the other wrapper's
  };
  // The module may be one itself, and one that nobody holds by a shared pointer.
  if (auto* self = dynamic_cast<SyncBatchNormImpl*>(&module)) add({module.weak_from_this().lock(), self});
  for (const auto& part : module.modules(/*include_self=*/false))
    add(std::dynamic_pointer_cast<SyncBatchNormImpl>(part));
  if (batch_norms.empty()) return;
  batch_norm_link = std::make_shared<const SyncBatchNormImpl::Link>(
      SyncBatchNormImpl::Link{.comm = comm.duplicate(), .while_waiting = [this] { return reducer.progress(); }});
  for (const auto& batch_norm : batch_norms) batch_norm->connect(batch_norm_link);
}

// Ranks that are threads would take turns in one generator, and none of them would have a stream of its own.
void DistributedDataParallel::State::require_generator_of_its_own() {
  if (!comm.seed() || comm.world_size() == 1) return;
  static const char in_this_process = 0;
  const auto all = comm.gather(fmt::format("{} {}", ::getpid(), fmt::ptr(&in_this_process)));
  for (int peer = 0; peer < comm.world_size(); ++peer) {
    if (peer == comm.rank() || all[peer] != all[comm.rank()]) continue;
    comm.fail({ErrorCode::InvalidArgument,
               fmt::format("ranks {} and {} are threads of one process, which share libtorch's one CPU generator: "
                           "paceline::seed() cannot give each a random stream of its own. Start them as processes, or "
                           "draw from generators of your own",
                           std::min(peer, comm.rank()), std::max(peer, comm.rank())),
               comm.rank(), peer});
  }
}

void DistributedDataParallel::require_parameters(const torch::optim::Optimizer& optimizer) const {
  const auto& groups = optimizer.param_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& parameters = groups[g].params();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      if (state_->known.contains(parameters[p].unsafeGetTensorImpl())) continue;
      throw Error(
          ErrorCode::InvalidArgument,
          fmt::format("parameter {} of group {} of the optimizer, a {} of shape [{}], does not belong to the wrapped "
                      "model '{}', so that its gradient would not be averaged; register it with the module before "
                      "wrapping, and wrap all of what the optimizer trains",
                      p, g, c10::toString(parameters[p].scalar_type()), fmt::join(parameters[p].sizes(), ", "),
                      state_->options.name),
          state_->comm.rank());
    }
  }
}

std::optional<std::string> DistributedDataParallel::replica_difference() const {
  return difference_of_replicas(state_->comm, ReplicaHashes::of(state_->replica, state_->optimizers));
}

}  // namespace paceline
