#include "paceline/train/state/optimizer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "paceline/train/optimizer.h"
#include "paceline/train/state/stored_tensors.h"
#include "paceline/train/torch_compat.h"

namespace paceline {
namespace {

using nlohmann::json;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;
using AnyOptimizer = torch::optim::Optimizer;

constexpr const char* kArchive = "archive";  // no moment's name, as these have a dot

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

template <class Visit>
void each(torch::optim::LBFGSOptions& o, Visit visit) {
  visit("lr", o.lr()), visit("max_iter", o.max_iter()), visit("max_eval", o.max_eval());
  visit("tolerance_grad", o.tolerance_grad()), visit("tolerance_change", o.tolerance_change());
  visit("history_size", o.history_size()), visit("line_search_fn", o.line_search_fn());
}
template <class Visit>
void each(torch::optim::LBFGSParamState& s, Visit visit) {
  visit("func_evals", s.func_evals()), visit("n_iter", s.n_iter());
  if (s.n_iter() > 0) visit("t", s.t()), visit("prev_loss", s.prev_loss());  // libtorch leaves them unset before
  visit("d", s.d()), visit("H_diag", s.H_diag()), visit("prev_flat_grad", s.prev_flat_grad());
  visit("old_dirs", s.old_dirs()), visit("old_stps", s.old_stps()), visit("ro", s.ro()), visit("al", s.al());
}

/// Of an optimizer of another kind, nothing is known but a learning rate, if it has one.
struct AnyOptions {
  OptimizerOptions& options;
};
struct AnyState {};
template <class Visit>
void each(AnyOptions o, Visit visit) {
  double lr = 0;
  try {
    lr = o.options.get_lr();
  } catch (const c10::Error&) {
    return;
  }
  visit("lr", lr);
  o.options.set_lr(lr);
}

/// A kind whose options and states are known: of this very class, as one that is derived from it may keep more.
template <class BaseType, class OptionsType, class StateType>
struct Kind {
  using Base = BaseType;
  using Options = OptionsType;
  using State = StateType;
  const char* name;
};
struct OtherKind {
  using State = AnyState;
};

/// Calls `with(kind)` for the kind of this optimizer.
template <class With>
void with_kind(const AnyOptimizer& optimizer, With with) {
  using namespace torch::optim;
  bool known = false;
  const auto try_kind = [&](auto kind) {
    using Base = typename decltype(kind)::Base;
    if (typeid(optimizer) != typeid(Base) && typeid(optimizer) != typeid(paceline::Optimizer<Base>)) return;
    known = true;
    with(kind);
  };
  try_kind(Kind<SGD, SGDOptions, SGDParamState>{"SGD"});
  try_kind(Kind<Adam, AdamOptions, AdamParamState>{"Adam"});
  try_kind(Kind<AdamW, AdamWOptions, AdamWParamState>{"AdamW"});
  try_kind(Kind<Adagrad, AdagradOptions, AdagradParamState>{"Adagrad"});
  try_kind(Kind<RMSprop, RMSpropOptions, RMSpropParamState>{"RMSprop"});
  try_kind(Kind<LBFGS, LBFGSOptions, LBFGSParamState>{"LBFGS"});
  if (!known) with(OtherKind{});
}

template <class K>
decltype(auto) options_of(K, OptimizerOptions& options) {
  if constexpr (std::is_same_v<K, OtherKind>) return AnyOptions{options};
  else return static_cast<typename K::Options&>(options);
}

/// The class's name, without our wrapper.
std::string class_of(const AnyOptimizer& optimizer) {
  constexpr std::string_view kWrapper = "paceline::Optimizer<";
  std::string name = c10::demangle(typeid(optimizer).name());
  if (!name.starts_with(kWrapper) || !name.ends_with('>')) return name;
  name = name.substr(kWrapper.size(), name.size() - kWrapper.size() - 1);
  while (name.ends_with(' ')) name.pop_back();
  return name;
}

std::string kind_of(const AnyOptimizer& optimizer) {
  std::string name;
  with_kind(optimizer, [&](auto kind) {
    if constexpr (std::is_same_v<decltype(kind), OtherKind>) name = class_of(optimizer);
    else name = kind.name;
  });
  return name;
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
  template <class T>
  void operator()(const char* name, c10::optional<T>& value) const {
    if (!value) object[name] = nullptr;
    else if constexpr (std::is_same_v<T, std::vector<torch::Tensor>>) (*this)(name, *value);
    else object[name] = *value;
  }
  template <class List>
  requires std::same_as<typename List::value_type, torch::Tensor>
  void operator()(const char* name, List& list) const {
    object[name] = list.size();
    for (std::size_t i = 0; i < list.size(); ++i) (*this)(fmt::format("{}.{}", name, i).c_str(), list[i]);
  }
};

struct FromJson {
  const json& object;
  const TensorIndex* tensors = nullptr;
  std::string prefix{};

  template <class T>
  void operator()(const char* name, T& value) const {
    value = object.at(name).get<T>();
  }
  void operator()(const char* name, torch::Tensor& value) const {
    const torch::Tensor* found = tensors->find(prefix + "." + name);
    value = found == nullptr ? torch::Tensor() : found->detach().clone();
  }
  template <class T>
  void operator()(const char* name, c10::optional<T>& value) const {
    value.reset();
    if (object.at(name).is_null()) return;
    value = T();
    (*this)(name, *value);
  }
  template <class List>
  requires std::same_as<typename List::value_type, torch::Tensor>
  void operator()(const char* name, List& list) const {
    constexpr std::size_t kMost = std::size_t{1} << 20;
    const auto size = object.at(name).get<std::size_t>();
    if (size > kMost) throw Error(ErrorCode::InvalidArgument, fmt::format("the optimizer's {} is too long", name));
    list.clear();
    list.resize(size);
    for (std::size_t i = 0; i < size; ++i) (*this)(fmt::format("{}.{}", name, i).c_str(), list[i]);
  }
};

/// The names of a model's parameters, however many there are. Points into what it was made of.
class ParameterNames {
 public:
  explicit ParameterNames(const std::vector<NamedTensor>& names) {
    for (const NamedTensor& named : names) by_tensor_.emplace(named.tensor.unsafeGetTensorImpl(), &named.name);
  }
  const std::string& of(const torch::Tensor& parameter) const {
    const auto found = by_tensor_.find(parameter.unsafeGetTensorImpl());
    if (found != by_tensor_.end()) return *found->second;
    throw Error(ErrorCode::InvalidArgument, "the optimizer has a parameter that the model does not have");
  }

 private:
  std::unordered_map<const c10::TensorImpl*, const std::string*> by_tensor_;
};

/// Throws unless a tensor of the state has the shape of its parameter. LBFGS has all parameters in one, and numbers.
template <class K>
void require_fits(K, const std::string& name, const torch::Tensor& moment, const torch::Tensor& parameter,
                  const std::vector<torch::Tensor>& of_group) {
  if constexpr (std::is_same_v<typename K::State, torch::optim::LBFGSParamState>) {
    std::int64_t all = 0;
    for (const torch::Tensor& one : of_group) all += one.numel();
    if (moment.numel() == 1 || (moment.dim() == 1 && moment.numel() == all)) return;
  } else if (moment.sizes() == parameter.sizes()) {
    return;
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the optimizer's '{}' does not have the shape of its parameter", name));
}

/// Throws unless the groups are those of the optimizer.
void require_same_groups(const AnyOptimizer& optimizer, const ParameterNames& names, const json& scalars) {
  const auto& groups = optimizer.param_groups();
  if (scalars.at("groups").size() != groups.size()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the optimizer has {} parameter group(s), what is to be loaded {}", groups.size(),
                            scalars.at("groups").size()));
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto saved = scalars.at("groups")[g].at("parameters").get<std::vector<std::string>>();
    std::vector<std::string> own;
    for (const auto& parameter : groups[g].params()) own.push_back(names.of(parameter));
    if (saved == own) continue;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("group {} of the optimizer does not hold the parameters of what is to be loaded", g));
  }
}

const torch::Tensor& required(const TensorIndex& tensors, const std::string& name) {
  if (const torch::Tensor* found = tensors.find(name)) return *found;
  throw Error(ErrorCode::InvalidArgument, fmt::format("the optimizer's '{}' is missing", name));
}

void read_archive(const torch::Tensor& bytes, torch::serialize::InputArchive& archive) {
  try {
    archive.load_from(static_cast<const char*>(bytes.data_ptr()), bytes.nbytes());
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the optimizer's archive is damaged: {}", error.what_without_backtrace()));
  }
}

/// What the optimizer's own save() writes, as bytes; undefined where that is nothing, as of one that has none.
torch::Tensor archive_of(const AnyOptimizer& optimizer) {
  torch::serialize::OutputArchive out;
  optimizer.save(out);
  std::ostringstream stream;
  out.save_to(stream);
  const std::string text = std::move(stream).str();
  torch::Tensor bytes = torch::empty({static_cast<std::int64_t>(text.size())}, torch::kUInt8);
  std::copy(text.begin(), text.end(), static_cast<char*>(bytes.data_ptr()));
  torch::serialize::InputArchive in;
  read_archive(bytes, in);
  return in.keys().empty() ? torch::Tensor() : bytes;
}

}  // namespace

OptimizerState state_of(const AnyOptimizer& constant, const std::vector<NamedTensor>& names) {
  auto& optimizer = const_cast<AnyOptimizer&>(constant);  // the visitors only read
  const ParameterNames parameter_names(names);
  OptimizerState result;
  json scalars{{"kind", kind_of(optimizer)}, {"groups", json::array()}, {"state", json::object()}};
  with_kind(optimizer, [&](auto kind) {
    using State = typename decltype(kind)::State;
    for (auto& group : optimizer.param_groups()) {
      json entry;
      each(options_of(kind, group.options()), ToJson{entry});
      entry["parameters"] = json::array();
      for (const auto& parameter : group.params()) {
        const std::string& name = parameter_names.of(parameter);
        entry["parameters"].push_back(name);
        if constexpr (!std::is_same_v<State, AnyState>) {
          const auto found = optimizer.state().find(compat::state_key(parameter));
          if (found == optimizer.state().end() || !found->second) continue;
          if (scalars["state"].contains(name)) continue;  // libtorch's parameters() lists a tied one once for each name
          json& of_parameter = scalars["state"][name];
          of_parameter["tensors"] = json::array();
          each(static_cast<State&>(*found->second), ToJson{of_parameter, &result.tensors, name});
        }
      }
      scalars["groups"].push_back(std::move(entry));
    }
  });
  result.scalars = scalars.dump();
  return result;
}

OptimizerState whole_state_of(const AnyOptimizer& optimizer, const std::vector<NamedTensor>& names) {
  OptimizerState result = state_of(optimizer, names);
  bool known = false;
  with_kind(optimizer, [&](auto kind) { known = !std::is_same_v<decltype(kind), OtherKind>; });
  if (known) return result;
  const torch::Tensor archive = archive_of(optimizer);
  json scalars = json::parse(result.scalars);
  scalars[kArchive] = archive.defined();
  result.scalars = scalars.dump();
  if (archive.defined()) result.tensors.push_back({kArchive, archive});
  else result.unsaved = class_of(optimizer);
  return result;
}

void set_state(AnyOptimizer& optimizer, const std::vector<NamedTensor>& names, const OptimizerState& state) {
  prepared_state(optimizer, names, state)();
}

std::function<void()> prepared_state(AnyOptimizer& optimizer, const std::vector<NamedTensor>& names,
                                     const OptimizerState& state) {
  const torch::NoGradGuard no_grad;
  struct Prepared {
    std::vector<std::pair<compat::StateKey, std::unique_ptr<OptimizerParamState>>> states;
    std::vector<std::unique_ptr<OptimizerOptions>> options;
    bool replaces_states = false;
    std::optional<torch::serialize::InputArchive> archive;
  };
  const auto prepared = std::make_shared<Prepared>();
  try {
    const json scalars = json::parse(state.scalars);
    const std::string kind_name = kind_of(optimizer);
    if (scalars.at("kind") != kind_name) {
      throw Error(ErrorCode::InvalidArgument, fmt::format("the optimizer is {}, what is to be loaded is of {}",
                                                          kind_name, scalars.at("kind").get<std::string>()));
    }
    const ParameterNames parameter_names(names);
    const TensorIndex tensors(state.tensors);
    require_same_groups(optimizer, parameter_names, scalars);
    with_kind(optimizer, [&](auto kind) {
      using State = typename decltype(kind)::State;
      prepared->replaces_states = !std::is_same_v<State, AnyState>;
      for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
        auto& group = optimizer.param_groups()[g];
        prepared->options.push_back(group.options().clone());
        each(options_of(kind, *prepared->options.back()), FromJson{scalars.at("groups")[g]});
        if constexpr (!std::is_same_v<State, AnyState>) {
          for (const auto& parameter : group.params()) {
            const std::string& name = parameter_names.of(parameter);
            if (!scalars.at("state").contains(name)) continue;
            const json& saved = scalars.at("state").at(name);
            for (const auto& moment : saved.at("tensors")) {
              const std::string full = name + "." + moment.get<std::string>();
              require_fits(kind, full, required(tensors, full), parameter, group.params());
            }
            auto made = std::make_unique<State>();
            each(*made, FromJson{saved, &tensors, name});
            prepared->states.emplace_back(compat::state_key(parameter), std::move(made));
          }
        }
      }
    });
    if (scalars.value(kArchive, false)) read_archive(required(tensors, kArchive), prepared->archive.emplace());
  } catch (const json::exception& error) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("the optimizer's state is damaged: {}", error.what()));
  }
  return [&optimizer, prepared] {
    if (prepared->replaces_states) optimizer.state().clear();
    for (auto& [key, made] : prepared->states) optimizer.state()[key] = std::move(made);
    for (std::size_t g = 0; g < prepared->options.size(); ++g) {
      optimizer.param_groups()[g].set_options(std::move(prepared->options[g]));
    }
    if (prepared->archive) optimizer.load(*prepared->archive);
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
