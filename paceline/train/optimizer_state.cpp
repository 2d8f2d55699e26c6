#include "paceline/train/optimizer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "paceline/train/torch_compat.h"

namespace paceline {
namespace {

using nlohmann::json;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

// ---- What each kind of optimizer consists of. `visit` takes a name and a reference to a value.

template <class Visit>
void each(torch::optim::SGDOptions& o, Visit visit) {
  visit("lr", o.lr()), visit("momentum", o.momentum()), visit("dampening", o.dampening());
  visit("weight_decay", o.weight_decay()), visit("nesterov", o.nesterov());
}
template <class Visit>
void each(torch::optim::SGDParamState& s, Visit visit) {
  visit("momentum_buffer", s.momentum_buffer());
}

template <class T, class... Kinds>
concept OneOf = (std::same_as<T, Kinds> || ...);

template <OneOf<torch::optim::AdamOptions, torch::optim::AdamWOptions> Options, class Visit>
void each(Options& o, Visit visit) {
  visit("lr", o.lr()), visit("beta1", std::get<0>(o.betas())), visit("beta2", std::get<1>(o.betas()));
  visit("eps", o.eps()), visit("weight_decay", o.weight_decay()), visit("amsgrad", o.amsgrad());
}
template <OneOf<torch::optim::AdamParamState, torch::optim::AdamWParamState> State, class Visit>
void each(State& s, Visit visit) {
  visit("step", s.step()), visit("exp_avg", s.exp_avg()), visit("exp_avg_sq", s.exp_avg_sq());
  visit("max_exp_avg_sq", s.max_exp_avg_sq());
}

template <class Visit>
void each(torch::optim::AdagradOptions& o, Visit visit) {
  visit("lr", o.lr()), visit("lr_decay", o.lr_decay()), visit("weight_decay", o.weight_decay());
  visit("initial_accumulator_value", o.initial_accumulator_value()), visit("eps", o.eps());
}
template <class Visit>
void each(torch::optim::AdagradParamState& s, Visit visit) {
  visit("step", s.step()), visit("sum", s.sum());
}

template <class Visit>
void each(torch::optim::RMSpropOptions& o, Visit visit) {
  visit("lr", o.lr()), visit("alpha", o.alpha()), visit("eps", o.eps()), visit("weight_decay", o.weight_decay());
  visit("momentum", o.momentum()), visit("centered", o.centered());
}
template <class Visit>
void each(torch::optim::RMSpropParamState& s, Visit visit) {
  visit("step", s.step()), visit("square_avg", s.square_avg()), visit("momentum_buffer", s.momentum_buffer());
  visit("grad_avg", s.grad_avg());
}

/// Calls `with(options, tag of the state's type, name)` for the kind of optimizer that these options belong to.
template <class With>
void with_kind(OptimizerOptions& options, With with) {
  using namespace torch::optim;
  if (auto* sgd = dynamic_cast<SGDOptions*>(&options)) return with(*sgd, std::type_identity<SGDParamState>(), "SGD");
  if (auto* adam = dynamic_cast<AdamOptions*>(&options))
    return with(*adam, std::type_identity<AdamParamState>(), "Adam");
  if (auto* adamw = dynamic_cast<AdamWOptions*>(&options))
    return with(*adamw, std::type_identity<AdamWParamState>(), "AdamW");
  if (auto* adagrad = dynamic_cast<AdagradOptions*>(&options))
    return with(*adagrad, std::type_identity<AdagradParamState>(), "Adagrad");
  if (auto* rmsprop = dynamic_cast<RMSpropOptions*>(&options))
    return with(*rmsprop, std::type_identity<RMSpropParamState>(), "RMSprop");
  throw Error(ErrorCode::InvalidArgument,
              "the state of this optimizer is not known: SGD, Adam, AdamW, Adagrad and RMSprop are");
}

std::string kind_of(OptimizerOptions& options) {
  std::string kind;
  with_kind(options, [&](auto&, auto, const char* name) { kind = name; });
  return kind;
}

// ---- Values and JSON.

struct ToJson {
  json& object;
  std::vector<NamedTensor>* tensors = nullptr;
  std::string prefix{};

  void operator()(const char* name, double& value) const {
    if (!std::isfinite(value))
      throw Error(ErrorCode::InvalidArgument, fmt::format("the optimizer's {} is {}", name, value));
    object[name] = value;
  }
  void operator()(const char* name, bool& value) const { object[name] = value; }
  void operator()(const char* name, std::int64_t& value) const { object[name] = value; }
  void operator()(const char* name, torch::Tensor& value) const {
    if (!value.defined()) return;
    object["tensors"].push_back(name);
    tensors->push_back({prefix + "." + name, value});
  }
};

struct FromJson {
  const json& object;
  const std::vector<NamedTensor>* tensors = nullptr;
  std::string prefix{};

  template <class T>
  void operator()(const char* name, T& value) const {
    if constexpr (std::is_same_v<T, torch::Tensor>) {
      const std::string full = prefix + "." + name;
      const auto found =
          std::find_if(tensors->begin(), tensors->end(), [&](const NamedTensor& t) { return t.name == full; });
      value = found == tensors->end() ? torch::Tensor() : found->tensor.detach().clone();
    } else {
      value = object.at(name).get<T>();
    }
  }
};

const std::string& name_of(const torch::Tensor& parameter, const std::vector<NamedTensor>& names) {
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const NamedTensor& named) { return named.tensor.is_same(parameter); });
  if (found == names.end()) {
    throw Error(ErrorCode::InvalidArgument, "the optimizer has a parameter that the model does not have");
  }
  return found->name;
}

/// The model's parameter of this shape under this name; where a tensor of the state must fit.
void require_fits(const NamedTensor& moment, const std::string& parameter, const std::vector<NamedTensor>& names) {
  const auto found =
      std::find_if(names.begin(), names.end(), [&](const NamedTensor& named) { return named.name == parameter; });
  if (found != names.end() && found->tensor.sizes() == moment.tensor.sizes()) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the optimizer's '{}' does not have the shape of parameter '{}'", moment.name, parameter));
}

/// Throws unless the groups are those of the optimizer.
void require_same_groups(const Optimizer& optimizer, const std::vector<NamedTensor>& names, const json& scalars) {
  const auto& groups = optimizer.param_groups();
  if (scalars.at("groups").size() != groups.size()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the optimizer has {} parameter group(s), what is to be loaded {}", groups.size(),
                            scalars.at("groups").size()));
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto saved = scalars.at("groups")[g].at("parameters").get<std::vector<std::string>>();
    std::vector<std::string> own;
    for (const auto& parameter : groups[g].params()) own.push_back(name_of(parameter, names));
    if (saved == own) continue;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("group {} of the optimizer does not hold the parameters of what is to be loaded", g));
  }
}

}  // namespace

OptimizerState state_of(const Optimizer& constant, const std::vector<NamedTensor>& names) {
  auto& optimizer = const_cast<Optimizer&>(constant);  // the visitors only read
  OptimizerState result;
  json scalars{{"kind", kind_of(optimizer.defaults())}, {"groups", json::array()}, {"state", json::object()}};
  for (auto& group : optimizer.param_groups()) {
    with_kind(group.options(), [&](auto& options, auto tag, const char*) {
      using State = typename decltype(tag)::type;
      json entry;
      each(options, ToJson{entry});
      entry["parameters"] = json::array();
      for (const auto& parameter : group.params()) {
        const std::string& name = name_of(parameter, names);
        entry["parameters"].push_back(name);
        const auto found = optimizer.state().find(compat::state_key(parameter));
        if (found == optimizer.state().end() || !found->second) continue;
        if (scalars["state"].contains(name)) continue;  // libtorch's parameters() lists a tied one once for each name
        json& of_parameter = scalars["state"][name];
        of_parameter["tensors"] = json::array();
        each(static_cast<State&>(*found->second), ToJson{of_parameter, &result.tensors, name});
      }
      scalars["groups"].push_back(std::move(entry));
    });
  }
  result.scalars = scalars.dump();
  return result;
}

void set_state(Optimizer& optimizer, const std::vector<NamedTensor>& names, const OptimizerState& state) {
  prepared_state(optimizer, names, state)();
}

std::function<void()> prepared_state(Optimizer& optimizer, const std::vector<NamedTensor>& names,
                                     const OptimizerState& state) {
  const torch::NoGradGuard no_grad;
  struct Prepared {
    std::vector<std::pair<compat::StateKey, std::unique_ptr<OptimizerParamState>>> states;
    std::vector<std::unique_ptr<OptimizerOptions>> options;
  };
  const auto prepared = std::make_shared<Prepared>();
  try {
    const json scalars = json::parse(state.scalars);
    const std::string kind = kind_of(optimizer.defaults());
    if (scalars.at("kind") != kind) {
      throw Error(ErrorCode::InvalidArgument, fmt::format("the optimizer is {}, what is to be loaded is of {}", kind,
                                                          scalars.at("kind").get<std::string>()));
    }
    require_same_groups(optimizer, names, scalars);
    for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
      auto& group = optimizer.param_groups()[g];
      prepared->options.push_back(group.options().clone());
      with_kind(*prepared->options.back(), [&](auto& options, auto tag, const char*) {
        using State = typename decltype(tag)::type;
        each(options, FromJson{scalars.at("groups")[g]});
        for (const auto& parameter : group.params()) {
          const std::string& name = name_of(parameter, names);
          if (!scalars.at("state").contains(name)) continue;
          const json& saved = scalars.at("state").at(name);
          for (const auto& moment : saved.at("tensors")) {
            const std::string full = name + "." + moment.get<std::string>();
            const auto found = std::find_if(state.tensors.begin(), state.tensors.end(),
                                            [&](const NamedTensor& t) { return t.name == full; });
            if (found == state.tensors.end()) {
              throw Error(ErrorCode::InvalidArgument, fmt::format("the optimizer's '{}' is missing", full));
            }
            require_fits(*found, name, names);
          }
          auto made = std::make_unique<State>();
          each(*made, FromJson{saved, &state.tensors, name});
          prepared->states.emplace_back(compat::state_key(parameter), std::move(made));
        }
      });
    }
  } catch (const json::exception& error) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("the optimizer's state is damaged: {}", error.what()));
  }
  return [&optimizer, prepared] {
    optimizer.state().clear();
    for (auto& [key, made] : prepared->states) optimizer.state()[key] = std::move(made);
    for (std::size_t g = 0; g < prepared->options.size(); ++g) {
      optimizer.param_groups()[g].set_options(std::move(prepared->options[g]));
    }
  };
}

std::string layout_of(const std::vector<NamedTensor>& tensors) {
  json layout = json::array();
  for (const NamedTensor& named : tensors) {
    layout.push_back({{"name", named.name},
                      {"dtype", static_cast<int>(named.tensor.scalar_type())},
                      {"shape", named.tensor.sizes().vec()}});
  }
  return layout.dump();
}

std::vector<NamedTensor> tensors_of(const std::string& layout) {
  std::vector<NamedTensor> tensors;
  for (const json& entry : json::parse(layout)) {
    const auto type = static_cast<torch::ScalarType>(entry.at("dtype").get<int>());
    tensors.push_back({entry.at("name"), torch::empty(entry.at("shape").get<std::vector<std::int64_t>>(), type)});
  }
  return tensors;
}

}  // namespace paceline
