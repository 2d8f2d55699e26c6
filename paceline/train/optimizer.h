#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "paceline/base/timeline.h"
#include "paceline/train/data_parallel.h"

namespace paceline {

/// A libtorch optimizer (torch::optim::SGD, AdamW, ...) that knows its gradients come from `ddp`. It is a `Base`, so
/// schedulers and serialisation take it as such.
///
/// step() throws if the gradients were never averaged: the module was cast or moved after it was wrapped, or backward
/// ended in an exception; a parameter was added that the model does not have; or `ddp` was destroyed. Its time goes to
/// the step's account as "optimizer".
///
/// step(closure), for LBFGS, gives libtorch, and returns, the loss of all ranks together: see ddp.evaluate().
///
/// Of libtorch's optimizers all state is compared between ranks, saved and handed on. Of a class of the user's own its
/// learning rate is compared, and saved and handed on is what its save() and load() make of it: `paceline::save()`
/// refuses one whose save() writes nothing.
///
///     paceline::Optimizer<torch::optim::SGD> optimizer(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
template <class Base>
class Optimizer final : public Base {
 public:
  template <class Options>
  Optimizer(DistributedDataParallel& ddp, std::vector<torch::Tensor> parameters, Options options)
      : Base(std::move(parameters), std::move(options)), ddp_(ddp) {
    introduce();
  }
  template <class Options>
  Optimizer(DistributedDataParallel& ddp, std::vector<torch::optim::OptimizerParamGroup> groups, Options options)
      : Base(std::move(groups), std::move(options)), ddp_(ddp) {
    introduce();
  }
  ~Optimizer() override {
    if (!lifetime_.expired()) ddp_.detach(*this);
  }
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  torch::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    require_wrapper();
    ddp_.require_parameters(*this);
    const bool has_closure = closure != nullptr;  // then backward runs inside step()
    if (!has_closure) rounds_ = ddp_.require_averaged(rounds_, *this);
    if (on_step_.before) on_step_.before();
    torch::Tensor loss;
    {
      const ScopedPhase phase(ddp_.comm().timeline(), Phase::Optimizer);
      loss = has_closure ? Base::step([&] { return ddp_.evaluate(closure); }) : Base::step(nullptr);
    }
    if (has_closure) rounds_ = ddp_.require_averaged(rounds_, *this);
    if (on_step_.after) on_step_.after();
    ddp_.comm().timeline().end_of_update();
    return loss;
  }

  /// Called by each step(), once the gradients are known to be averaged and after the update. Ranks must do the same.
  struct StepHooks {
    std::function<void()> before = {};
    std::function<void()> after = {};
  };
  void on_step(StepHooks hooks) { on_step_ = std::move(hooks); }

  /// Undefines the gradients, as newer libtorch does by default: the next backward then need not read zeros. With
  /// `set_to_none` false they are zeroed.
  void zero_grad(bool set_to_none = true) {
    require_wrapper();
    const ScopedPhase phase(ddp_.comm().timeline(), Phase::Optimizer);
    for (auto& group : this->param_groups()) {
      for (auto& parameter : group.params()) {
        auto& grad = parameter.mutable_grad();
        if (!grad.defined()) continue;
        if (set_to_none) grad.reset();
        else grad.detach_().zero_();
      }
    }
  }

 private:
  void introduce() {
    ddp_.require_parameters(*this);
    ddp_.attach(*this);
  }
  void require_wrapper() const {
    if (!lifetime_.expired()) return;
    throw Error(ErrorCode::InvalidArgument,
                "the DistributedDataParallel of this optimizer was destroyed, so that nothing averages its gradients; "
                "keep it as long as the optimizer steps");
  }

  DistributedDataParallel& ddp_;
  const std::weak_ptr<const void> lifetime_ = ddp_.lifetime();
  std::uint64_t rounds_ = 0;
  StepHooks on_step_;
};

}  // namespace paceline
