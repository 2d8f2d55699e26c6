#include "paceline/train/ddp/shared_parameters.h"

#include <fmt/format.h>

#include <algorithm>

namespace paceline {
namespace {

bool has(const torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  const auto& groups = optimizer.param_groups();
  return std::any_of(groups.begin(), groups.end(), [&](const auto& group) {
    return std::any_of(group.params().begin(), group.params().end(),
                       [&](const torch::Tensor& p) { return p.is_same(parameter); });
  });
}

}  // namespace

SharedParameters::SharedParameters(const std::vector<NamedTensor>& trained) {
  for (const NamedTensor& parameter : trained) {
    if (const auto owner = GradientHooks::owner_of(parameter.tensor)) {
      shared_.push_back({parameter, owner->model, owner});
    }
  }
}

std::vector<NamedTensor> SharedParameters::others(const std::vector<NamedTensor>& trained) const {
  std::vector<NamedTensor> result;
  std::copy_if(trained.begin(), trained.end(), std::back_inserter(result), [this](const NamedTensor& parameter) {
    return std::none_of(shared_.begin(), shared_.end(),
                        [&](const Shared& s) { return s.parameter.tensor.is_same(parameter.tensor); });
  });
  return result;
}

std::string SharedParameters::describe() const {
  std::string text;
  for (const Shared& s : shared_)
    text += fmt::format(", '{}' averaged with model '{}'", s.parameter.name, s.owner_model);
  return text;
}

void SharedParameters::require_same_average(const Comm& comm, Reduction reduction) const {
  if (shared_.empty()) return;
  std::string groups;
  for (const Shared& s : shared_) {
    const auto owner = s.owner.lock();
    groups += fmt::format("{} ", owner ? owner->group : 0);
    if (!owner || (owner->reduction == reduction && owner->world_size == comm.world_size())) continue;
    comm.fail({ErrorCode::InvalidArgument,
               fmt::format("parameter '{}' belongs to model '{}' too, which is wrapped already{}; wrap both with the "
                           "same communicator and the same Reduction, or only one of them",
                           s.parameter.name, s.owner_model,
                           owner->reduction == reduction
                               ? fmt::format(" over {} rank(s), not {}", owner->world_size, comm.world_size())
                               : " with another Reduction"),
               comm.rank(), comm.rank()});
  }
  const auto all = comm.gather(groups);
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& text) { return text != all[0]; });
  if (other == all.end()) return;
  comm.fail({ErrorCode::InvalidArgument,
             fmt::format("parameter '{}' belongs to model '{}' too, which ranks 0 and {} have wrapped with other ranks "
                         "than these; wrap both models with the same communicator",
                         shared_[0].parameter.name, shared_[0].owner_model, other - all.begin()),
             comm.rank(), static_cast<int>(other - all.begin())});
}

std::uint32_t SharedParameters::accumulated() const {
  std::uint32_t most = 0;
  for (const Shared& s : shared_) {
    if (const auto owner = s.owner.lock()) most = std::max(most, owner->accumulated());
  }
  return most;
}

void SharedParameters::zero_gradients() const {
  for (const Shared& s : shared_) {
    if (s.parameter.tensor.grad().defined()) s.parameter.tensor.mutable_grad().zero_();
  }
}

void SharedParameters::require_watched(const Comm& comm) const {
  for (const Shared& s : shared_) {
    const auto owner = s.owner.lock();
    if (owner && GradientHooks::owner_of(s.parameter.tensor) == owner) continue;
    comm.fail({ErrorCode::Aborted,
               fmt::format("the gradient of '{}' is not averaged any more: {}", s.parameter.name,
                           owner ? "the parameter was cast, moved or loaded anew after it was wrapped. Wrap models in "
                                   "the form in which they are trained"
                                 : fmt::format("the wrapper of model '{}', which did it, was destroyed. Destroy the "
                                               "wrappers of models that share parameters together",
                                               s.owner_model)),
               comm.rank(), comm.rank()});
  }
}

void SharedParameters::require_averaged(const Comm& comm, const torch::optim::Optimizer& optimizer) const {
  require_watched(comm);
  for (const Shared& s : shared_) {
    if (s.owner.lock()->accumulated() == 0 || !has(optimizer, s.parameter.tensor)) continue;
    comm.fail({ErrorCode::Aborted,
               fmt::format("optimizer.step() was called while the gradient of '{}' is accumulated and not averaged, by "
                           "the wrapper of model '{}' (no_sync() or accumulate()); step after the backward that "
                           "averages",
                           s.parameter.name, s.owner_model),
               comm.rank(), comm.rank()});
  }
}

}  // namespace paceline
