#include "paceline/train/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "paceline/sync/reducer.h"
#include "paceline/train/backward_watch.h"
#include "paceline/train/data_parallel_state.h"

namespace paceline {
namespace {

std::vector<NamedTensor> trainable(const Replica& replica) {
  std::vector<NamedTensor> result;
  for (const NamedTensor& parameter : replica.parameters) {
    if (parameter.tensor.requires_grad()) result.push_back(parameter);
  }
  if (result.empty()) {
    throw Error(ErrorCode::InvalidArgument, "the module has no parameter that requires a gradient");
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

// The checks come first: a reducer on ranks with different models would find out later and say less.
Replica checked_replica(const torch::nn::Module& module, const Comm& comm, const std::string& name) {
  Replica replica = Replica::of(module);
  require_same_replica(comm, replica, name);
  broadcast_replica(comm, replica);
  return replica;
}

// A layout that covers its memory without gaps can be a slot's; any other gradient is kept contiguous, as libtorch
// does.
std::vector<std::int64_t> slot_strides(const torch::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return torch::empty(parameter.sizes(), torch::kMeta).strides().vec();
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module, const Comm& comm,
                                                 DataParallelOptions options)
    : state_(std::make_unique<State>(module, comm, std::move(options))) {}

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

std::uint64_t DistributedDataParallel::require_averaged(std::uint64_t rounds_before) const {
  return state_->require_averaged(rounds_before);
}

DistributedDataParallel::State::State(torch::nn::Module& module, const Comm& with, DataParallelOptions how)
    : comm(with.duplicate()),
      options(std::move(how)),
      replica(checked_replica(module, comm, options.name)),
      parameters(trainable(replica)),
      reducer(comm, infos(parameters), {.bucket_bytes = options.bucket_bytes}),
      recorder(comm.timeline(), {.rank = comm.rank(), .threads = at::get_num_threads()}),
      hooks(tensors(parameters), [this](std::size_t index) { on_gradient(index); }),
      watch(comm.timeline()) {
  bind_slots();
  // From here on each rank draws its own dropout and augmentation.
  if (comm.seed())
    torch::manual_seed(*comm.seed() + 0x9E3779B97F4A7C15ull * static_cast<std::uint64_t>(comm.rank() + 1));
}

DistributedDataParallel::State::~State() {
  if (reducer.in_round()) comm.abort("its model was destroyed during backward");
}

// The hook of a parameter whose gradient is final.
void DistributedDataParallel::State::on_gradient(std::size_t index) {
  if (!reducer.in_round()) {
    begin_round();
  } else if (backward.expired()) {
    fail_abandoned();
  }
  take_gradient(index);
}

void DistributedDataParallel::State::begin_round() {
  const auto token = std::make_shared<char>();
  backward = token;
  compat::at_end_of_backward([this, token] { finish_round(); });
  reducer.begin();
}

// A gradient that was accumulated in place lies in its slot already; a fresh one is brought there.
void DistributedDataParallel::State::take_gradient(std::size_t index) {
  torch::Tensor& gradient = parameters[index].tensor.mutable_grad();
  const torch::Tensor& slot = slots[index];
  if (comm.world_size() == 1 || gradient.is_alias_of(slot)) return reducer.mark_ready(index);
  if (gradient.requires_grad()) {
    comm.fail({ErrorCode::InvalidArgument,
               fmt::format("backward(create_graph=true) reached parameter '{}': an averaged gradient has no graph. Use "
                           "torch::autograd::grad for the inner derivative",
                           parameters[index].name),
               comm.rank()});
  }
  if (gradient.layout() != torch::kStrided) {
    comm.fail({ErrorCode::InvalidArgument,
               fmt::format("parameter '{}' has a sparse gradient, which is not averaged yet; use a dense one",
                           parameters[index].name),
               comm.rank()});
  }
  if (gradient.strides() == slot.strides() && gradient.scalar_type() == slot.scalar_type()) {
    reducer.store(index, static_cast<const std::byte*>(gradient.data_ptr()));
  } else {
    const torch::NoGradGuard no_grad;
    slot.detach().copy_(gradient);
    reducer.mark_ready(index);
  }
  gradient = slot;
}

// All hooks of this backward have run.
void DistributedDataParallel::State::finish_round() {
  const torch::NoGradGuard no_grad;
  require_still_frozen();
  for (const std::size_t index : reducer.absent()) contribute_absent(index);
  if (reducer.finish()) move_gradients();
  for (auto& [index, before] : absent) {
    if (reducer.took_part(index)) {
      if (comm.world_size() > 1) parameters[index].tensor.mutable_grad() = slots[index];
    } else if (before.defined()) {
      slots[index].copy_(before);
    }
  }
  absent.clear();
  for (const auto& [a, b] : reducer.twins()) {
    recorder.add_finding(
        {.id = "same_batch",
         .severity = Severity::Error,
         .evidence = fmt::format("ranks {} and {} computed the same gradients in the first step", a, b),
         .fix = "they read the same samples: use paceline::DataLoader, or give each rank its part"});
  }
  comm.timeline().enter(Phase::Other);
}

// One process would add nothing to this gradient, so the rank contributes what is there: what earlier backwards
// accumulated, or zeros. Remembered, since a gradient that no rank computed must stay as it is.
void DistributedDataParallel::State::contribute_absent(std::size_t index) {
  const NamedTensor& parameter = parameters[index];
  if (!hooks.still_watches(index, parameter.tensor)) fail_changed(parameter.name);
  torch::Tensor& gradient = parameter.tensor.mutable_grad();
  if (comm.world_size() > 1) {
    if (!gradient.defined()) {
      slots[index].zero_();
    } else if (!gradient.is_alias_of(slots[index])) {
      slots[index].copy_(gradient);
      gradient = slots[index];
    }
    absent.emplace_back(index, gradient.defined() ? slots[index].clone() : torch::Tensor());
  }
  reducer.mark_absent(index);
}

void DistributedDataParallel::State::bind_slots() {
  slots.clear();
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const torch::Tensor& parameter = parameters[index].tensor;
    const Reducer::SlotMemory memory = reducer.slot(index);
    // Not a view of the bucket: libtorch's zero_grad() detaches in place, which views refuse.
    slots.push_back(torch::from_blob(
        memory.data, parameter.sizes(), slot_strides(parameter), [owner = memory.owner](void*) {},
        parameter.options().requires_grad(false)));
  }
}

void DistributedDataParallel::State::move_gradients() {
  const std::vector<torch::Tensor> old = slots;
  bind_slots();
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    torch::Tensor& gradient = parameters[index].tensor.mutable_grad();
    if (gradient.defined() && gradient.is_alias_of(old[index])) gradient = slots[index];
  }
}

std::uint64_t DistributedDataParallel::State::require_averaged(std::uint64_t rounds_before) {
  if (reducer.in_round()) fail_abandoned();
  require_still_frozen();
  if (reducer.rounds() > rounds_before) return reducer.rounds();
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    if (!hooks.still_watches(index, parameters[index].tensor)) fail_changed(parameters[index].name);
  }
  comm.fail({ErrorCode::Aborted,
             "optimizer.step() was called on gradients that were never averaged: no backward() has reached this model "
             "since the last step",
             comm.rank(), comm.rank()});
}

void DistributedDataParallel::State::require_still_frozen() {
  if (parameters.size() == replica.parameters.size()) return;
  std::size_t trained = 0;  // both lists are in the same order
  for (const NamedTensor& parameter : replica.parameters) {
    if (trained < parameters.size() && parameters[trained].tensor.is_same(parameter.tensor)) ++trained;
    else if (parameter.tensor.requires_grad()) fail_changed(parameter.name);
  }
}

void DistributedDataParallel::require_parameters(const std::vector<torch::Tensor>& of_optimizer) const {
  for (const torch::Tensor& tensor : of_optimizer) {
    const auto& known = state_->replica.parameters;
    const auto same = [&](const NamedTensor& parameter) { return parameter.tensor.is_same(tensor); };
    if (std::any_of(known.begin(), known.end(), same)) continue;
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("the optimizer was given a parameter that does not belong to the wrapped model '{}', so that "
                    "its gradient would not be averaged; wrap all of what it trains",
                    state_->options.name),
        state_->comm.rank());
  }
}

void DistributedDataParallel::State::fail_abandoned() {
  comm.fail(
      {ErrorCode::Aborted,
       fmt::format("rank {}'s backward() ended before its gradients were averaged, in an exception; nothing may go "
                   "on from there",
                   comm.rank()),
       comm.rank(), comm.rank()});
}

void DistributedDataParallel::State::fail_changed(const std::string& name) {
  comm.fail(
      {ErrorCode::Aborted,
       fmt::format("parameter '{}' was cast, moved, frozen or unfrozen after its module was wrapped (on rank {}), so "
                   "its gradient is not averaged; wrap the module in the form in which it is trained",
                   name, comm.rank()),
       comm.rank(), comm.rank()});
}

}  // namespace paceline
