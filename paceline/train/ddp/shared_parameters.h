#pragma once

#include <memory>
#include <string>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/train/ddp/gradient_hooks.h"
#include "paceline/train/replica.h"

namespace paceline {

/// The parameters of a model that another wrapper, made earlier, averages: the trunk that an actor and a critic share,
/// when each is wrapped. The first wrapper's hooks see every backward that reaches them, so the second one leaves them
/// to it: averaged once, they are the sum of all losses' means.
class SharedParameters {
 public:
  SharedParameters() = default;
  explicit SharedParameters(const std::vector<NamedTensor>& trained);

  /// Those of `trained` that are not shared.
  std::vector<NamedTensor> others(const std::vector<NamedTensor>& trained) const;
  /// Which they are and who averages them, for a comparison of ranks; "" where there are none.
  std::string describe() const;

  /// Collective. Throws InvalidArgument, naming a parameter, where the other wrapper averages in another way or over
  /// other ranks.
  void require_same_average(const Comm& comm, Reduction reduction) const;
  /// How many backwards' gradients of theirs are accumulated and not averaged, by the wrapper that has most.
  std::uint32_t accumulated() const;
  /// Throws Aborted, naming a parameter, if the wrapper that averaged it is gone, or the parameter's hooks are.
  void require_watched(const Comm& comm) const;
  /// The same, and unless that wrapper has averaged all that it accumulated; of the parameters that `optimizer` steps.
  void require_averaged(const Comm& comm, const torch::optim::Optimizer& optimizer) const;
  /// Zeroes the gradients: they lie where the other wrapper, or the user, has put them.
  void zero_gradients() const;

 private:
  struct Shared {
    NamedTensor parameter;
    std::string owner_model;
    std::weak_ptr<const GradientOwner> owner;
  };
  std::vector<Shared> shared_;
};

}  // namespace paceline
