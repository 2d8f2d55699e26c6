#include "paceline/train/checkpoint.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "paceline/data/checkpoint_folder.h"
#include "paceline/data/safetensors.h"
#include "paceline/train/agree.h"
#include "paceline/train/state/optimizer_state.h"
#include "paceline/train/state/stored_tensors.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kRandom = "random_state";
std::string optimizer_file(std::size_t index) { return fmt::format("optimizer-{}.safetensors", index); }
std::string rank_file(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }
std::string buffer_name(const std::string& name) { return "buffer." + name; }

torch::Tensor random_state() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(const torch::Tensor& state) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

std::vector<NamedTensor> of_model(const Replica& replica) {
  std::vector<NamedTensor> all = replica.parameters;
  all.insert(all.end(), replica.buffers.begin(), replica.buffers.end());
  return all;
}

std::vector<NamedTensor> of_rank(const DistributedDataParallel& ddp) {
  std::vector<NamedTensor> all{{kRandom, random_state()}};
  for (const NamedTensor& buffer : ddp.replica().buffers) all.push_back({buffer_name(buffer.name), buffer.tensor});
  return all;
}

/// Of each optimizer. Throws where one has a state that is not known.
std::vector<OptimizerState> optimizer_states(const DistributedDataParallel& ddp) {
  std::vector<OptimizerState> states;
  for (const auto* optimizer : ddp.optimizers()) {
    states.push_back(whole_state_of(*optimizer, ddp.replica().parameters));
    if (states.back().unsaved.empty()) continue;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the optimizer {} cannot be saved: it is none of libtorch's, and its own save() writes "
                            "nothing. Override torch::optim::Optimizer::save() and load() there; one without any "
                            "state may write a number",
                            states.back().unsaved));
  }
  return states;
}

/// Writes the files of this rank; returns what the manifest says of them, as JSON.
std::string write_files(const fs::path& part, const DistributedDataParallel& ddp,
                        const std::vector<OptimizerState>& optimizers) {
  json files = json::array();
  const auto write = [&](const std::string& name, const std::vector<NamedTensor>& tensors,
                         const std::map<std::string, std::string>& metadata = {}) {
    std::vector<torch::Tensor> keep;
    const WrittenFile file = write_safetensors(part / name, stored(tensors, keep), metadata);
    files.push_back({{"name", name}, {"bytes", file.bytes}, {"crc32c", file.checksum}});
  };
  write(rank_file(ddp.comm().rank()), of_rank(ddp));
  if (ddp.comm().rank() == 0) {
    write(kModel, of_model(ddp.replica()), ddp.replica().aliases);  // where safetensors.torch.load_model looks for them
    for (std::size_t i = 0; i < optimizers.size(); ++i) write(optimizer_file(i), optimizers[i].tensors);
  }
  return files.dump();
}

std::string contents_of(const DistributedDataParallel& ddp, const JobState& job,
                        const std::vector<OptimizerState>& optimizers) {
  json contents{{"model", ddp.options().name}, {"world_size", ddp.comm().world_size()}, {"rounds", ddp.rounds()},
                {"numbers", job.numbers},      {"optimizers", json::array()},           {"loaders", json::array()}};
  for (const OptimizerState& state : optimizers) contents["optimizers"].push_back(json::parse(state.scalars));
  for (const DataLoader* loader : job.loaders) {
    const DataLoader::Position position = loader->position();
    contents["loaders"].push_back({{"epoch", position.epoch}, {"done", position.done}, {"samples", loader->samples()}});
  }
  return contents.dump();
}

Manifest manifest_of(const std::vector<std::string>& files_of_ranks, std::string contents) {
  Manifest manifest;
  manifest.contents = std::move(contents);
  for (const std::string& files : files_of_ranks) {
    for (const json& file : json::parse(files)) {
      manifest.files.push_back({.name = file.at("name"), .bytes = file.at("bytes"), .checksum = file.at("crc32c")});
    }
  }
  return manifest;
}

void require_numbers(const JobState& job) {
  for (const auto& [name, value] : job.numbers) {
    if (!std::isfinite(value)) {
      throw Error(ErrorCode::InvalidArgument, fmt::format("number '{}' is {}, which JSON does not have", name, value));
    }
  }
}

/// Rank 0's replica is written for all.
void require_equal_replicas(const DistributedDataParallel& ddp) {
  if (ddp.options().check_replicas_every == 0) return;
  const auto difference = ddp.replica_difference();
  if (!difference) return;
  throw Error(Fault::ReplicasDrifted,
              fmt::format("the replicas of model '{}' have drifted apart and are not saved: {}. Something changes them "
                          "on some ranks only",
                          ddp.options().name, *difference),
              ddp.comm().rank());
}

/// Where each loader was, and the size of its data set.
struct SavedLoader {
  DataLoader::Position position;
  std::size_t samples = 0;
};

/// What contents_of() wrote. Throws json::exception where it did not write this.
struct Contents {
  explicit Contents(const json& contents)
      : world_size(contents.at("world_size")), rounds(contents.at("rounds")), numbers(contents.at("numbers")) {
    for (const json& optimizer : contents.at("optimizers")) optimizers.push_back(optimizer.dump());
    for (const json& loader : contents.at("loaders")) {
      loaders.push_back(
          {.position = {.epoch = loader.at("epoch"), .done = loader.at("done")}, .samples = loader.at("samples")});
    }
  }

  int world_size = 0;
  std::uint64_t rounds = 0;
  std::map<std::string, double> numbers;
  std::vector<std::string> optimizers;  ///< JSON, for prepared_state().
  std::vector<SavedLoader> loaders;
};

/// Throws unless the manifest has the form that load() reads, and all that it may read is among the files whose
/// checksums were compared.
void require_loadable(const Manifest& manifest, const fs::path& path) {
  std::set<std::string_view> names;
  for (const CheckpointFile& file : manifest.files) names.insert(file.name);
  const auto require = [&](const std::string& name) {
    if (names.contains(name)) return;
    throw Error(ErrorCode::Corrupt, fmt::format("{} is damaged: its manifest lacks {}", path.string(), name));
  };
  require(kModel);
  try {
    const Contents contents(json::parse(manifest.contents));
    for (std::size_t i = 0; i < contents.optimizers.size(); ++i) require(optimizer_file(i));
    for (int rank = 0; rank < contents.world_size; ++rank) require(rank_file(rank));
  } catch (const json::exception& error) {
    throw Error(ErrorCode::Corrupt, fmt::format("{} is damaged: {}", path.string(), error.what()));
  }
}

/// The newest sound checkpoint, its contents and what is wrong with newer ones, as JSON; "" where there is none at all.
std::string choose(const fs::path& folder) {
  const auto all = checkpoints(folder);
  json damaged = json::array();
  for (const fs::path& path : all) {
    try {
      const Manifest manifest = verify_checkpoint(path);
      require_loadable(manifest, path);
      const json choice{{"path", path.string()}, {"contents", json::parse(manifest.contents)}, {"damaged", damaged}};
      return choice.dump(-1, ' ', false, json::error_handler_t::replace);  // messages quote what is damaged
    } catch (const Error& error) {
      damaged.push_back(error.message());
    }
  }
  if (all.empty()) return "";
  throw Error(ErrorCode::Corrupt,
              fmt::format("{} holds no sound checkpoint: {}", folder.string(), damaged[0].get<std::string>()));
}

/// All that load() will change, read and checked. Nothing fails any more once it is there, but a load() of a user's own
/// optimizer.
struct Staged {
  std::vector<NamedTensor> model, of_rank;
  std::vector<std::function<void()>> optimizers;
  std::vector<DataLoader::Position> loaders;
  std::map<std::string, double> numbers;
  std::uint64_t rounds = 0;
};

void require_same_job(const Contents& contents, const DistributedDataParallel& ddp, const JobState& job) {
  const auto require = [](const char* what, std::size_t have, std::size_t saved) {
    if (have == saved) return;
    throw Error(ErrorCode::InvalidArgument, fmt::format("this job has {} {}, the checkpoint {}", have, what, saved));
  };
  require("optimizer(s)", ddp.optimizers().size(), contents.optimizers.size());
  require("loader(s)", job.loaders.size(), contents.loaders.size());
  for (std::size_t i = 0; i < job.loaders.size(); ++i) {
    require("samples in its data set", job.loaders[i]->samples(), contents.loaders[i].samples);
  }
}

Staged stage(const fs::path& path, Contents contents, const DistributedDataParallel& ddp, const JobState& job) {
  Staged staged;
  require_same_job(contents, ddp, job);
  staged.model = tensors_in(read_safetensors(path / kModel));
  require_same_tensors(staged.model, of_model(ddp.replica()), (path / kModel).string());
  const int rank = ddp.comm().rank();
  const int ranks_then = contents.world_size;
  if (rank < ranks_then && (rank == 0 || ranks_then == ddp.comm().world_size())) {
    staged.of_rank = tensors_in(read_safetensors(path / rank_file(rank)));
    require_same_tensors(staged.of_rank, of_rank(ddp), (path / rank_file(rank)).string());
    at::detail::createCPUGenerator().set_state(TensorIndex(staged.of_rank).at(kRandom));  // throws for a damaged one
  }
  for (std::size_t i = 0; i < ddp.optimizers().size(); ++i) {
    OptimizerState state{.scalars = contents.optimizers[i],
                         .tensors = tensors_in(read_safetensors(path / optimizer_file(i)))};
    staged.optimizers.push_back(prepared_state(*ddp.optimizers()[i], ddp.replica().parameters, state));
  }
  for (const SavedLoader& loader : contents.loaders) staged.loaders.push_back(loader.position);
  staged.numbers = std::move(contents.numbers);
  staged.rounds = contents.rounds;
  return staged;
}

/// The same, where JSON of another form than ours is an Error as well.
Staged stage_or_fail(const fs::path& path, const json& contents, const DistributedDataParallel& ddp,
                     const JobState& job) {
  try {
    return stage(path, Contents(contents), ddp, job);
  } catch (const json::exception& error) {
    throw Error(ErrorCode::Corrupt, fmt::format("{} is damaged: {}", path.string(), error.what()));
  }
}

void apply(Staged& staged, DistributedDataParallel& ddp, JobState& job) {
  const torch::NoGradGuard no_grad;
  const TensorIndex model(staged.model), own(staged.of_rank);
  for (const NamedTensor& named : of_model(ddp.replica())) named.tensor.detach().copy_(model.at(named.name));
  if (!staged.of_rank.empty()) {
    for (const NamedTensor& buffer : ddp.replica().buffers) {
      buffer.tensor.detach().copy_(own.at(buffer_name(buffer.name)));
    }
    set_random_state(own.at(kRandom));
  }
  for (std::size_t i = 0; i < job.loaders.size(); ++i) job.loaders[i]->resume_at(staged.loaders[i]);
  job.numbers = std::move(staged.numbers);
  ddp.resume_at(staged.rounds);
  for (const auto& optimizer : staged.optimizers) optimizer();
}

}  // namespace

fs::path save(const fs::path& folder, DistributedDataParallel& ddp, const JobState& job, SaveOptions options) {
  const Comm& comm = ddp.comm();
  const bool first = comm.rank() == 0;
  std::vector<OptimizerState> optimizers;
  agree(comm, [&] {
    if (ddp.accumulated() > 0) {
      throw Error(
          ErrorCode::InvalidArgument,
          "save() was called while gradients are accumulated and not averaged; save after the optimizer's step");
    }
    require_numbers(job);
    if (first) optimizers = optimizer_states(ddp);
    return std::string();
  });
  require_equal_replicas(ddp);
  const fs::path part = agree(comm, [&] { return first ? begin_checkpoint(folder).string() : std::string(); })[0];
  try {
    const auto files = agree(comm, [&] { return write_files(part, ddp, optimizers); });
    return agree(comm, [&]() -> std::string {
      return first
                 ? commit_checkpoint(part, manifest_of(files, contents_of(ddp, job, optimizers)), options.keep).string()
                 : "";
    })[0];
  } catch (...) {
    std::error_code ignored;  // an unfinished folder is removed by the next save as well
    if (first) fs::remove_all(part, ignored);
    throw;
  }
}

std::optional<Loaded> load(const fs::path& folder, DistributedDataParallel& ddp, JobState& job) {
  const Comm& comm = ddp.comm();
  const std::string chosen = agree(comm, [&] { return comm.rank() == 0 ? choose(folder) : std::string(); })[0];
  if (chosen.empty()) return std::nullopt;
  const json choice = json::parse(chosen);
  const fs::path path = choice.at("path").get<std::string>();
  Staged staged;
  agree(comm, [&] {
    staged = stage_or_fail(path, choice.at("contents"), ddp, job);
    return std::string();
  });
  agree(comm, [&] {
    apply(staged, ddp, job);
    return std::string();
  });
  return Loaded{.path = path, .rounds = ddp.rounds(), .damaged = choice.at("damaged").get<std::vector<std::string>>()};
}

}  // namespace paceline
