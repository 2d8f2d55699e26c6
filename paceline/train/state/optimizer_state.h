#pragma once

#include <functional>
#include <string>
#include <vector>

#include "paceline/train/replica.h"

namespace paceline {

/// Everything in a libtorch optimizer that its next steps depend on, apart from what it refers to: moments, counters,
/// learning rates and all other options. Knows SGD, Adam, AdamW, Adagrad, RMSprop and LBFGS. Of an optimizer of another
/// kind it has the learning rate, and as a tensor `archive`, kept as it is, what the optimizer's own save() writes.
struct OptimizerState {
  /// JSON: {"kind", "groups": [{options, "parameters": [names]}], "state": {name: {counters, "tensors": [names]}}}.
  std::string scalars;
  /// Moments, as "parameter.exp_avg", in the order of the optimizer's parameters. They share the optimizer's memory.
  std::vector<NamedTensor> tensors;
  /// The class of an optimizer of another kind whose save() writes nothing, so that its state is not here; else empty.
  std::string unsaved = {};
};

/// What is the same on all ranks, bit for bit: all but `archive`, which may hold addresses. Parameters stand under the
/// names that `names` gives them. Throws InvalidArgument for parameters that have no name there.
OptimizerState state_of(const torch::optim::Optimizer& optimizer, const std::vector<NamedTensor>& names);
/// All of it.
OptimizerState whole_state_of(const torch::optim::Optimizer& optimizer, const std::vector<NamedTensor>& names);

/// Gives `optimizer` that state; tensors are copied. Checks all of it first: throws InvalidArgument, and has changed
/// nothing, unless it is of the same kind with the same groups of the same parameters.
void set_state(torch::optim::Optimizer& optimizer, const std::vector<NamedTensor>& names, const OptimizerState& state);
/// The same in two: what it returns changes the optimizer, and does not fail unless a load() of the user's does.
std::function<void()> prepared_state(torch::optim::Optimizer& optimizer, const std::vector<NamedTensor>& names,
                                     const OptimizerState& state);

/// "shape" and "dtype" of each tensor in a line of JSON, and tensors of that form: what set_state() needs on a rank
/// that gets the values from another one.
std::string layout_of(const std::vector<NamedTensor>& tensors);
std::vector<NamedTensor> tensors_of(const std::string& layout);

}  // namespace paceline
