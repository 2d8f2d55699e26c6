#include "paceline/train/checkpoint.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "paceline/data/checkpoint_folder.h"
#include "paceline/data/safetensors.h"
#include "paceline/train/agree.h"
#include "paceline/train/optimizer_state.h"
#include "paceline/train/stored_tensors.h"

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

/// Writes the files of this rank; returns what the manifest says of them, as JSON.
std::string write_files(const fs::path& part, const DistributedDataParallel& ddp) {
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
    for (std::size_t i = 0; i < ddp.optimizers().size(); ++i) {
      write(optimizer_file(i), state_of(*ddp.optimizers()[i], ddp.replica().parameters).tensors);
    }
  }
  return files.dump();
}

std::string contents_of(const DistributedDataParallel& ddp, const JobState& job) {
  json contents{{"model", ddp.options().name}, {"world_size", ddp.comm().world_size()}, {"rounds", ddp.rounds()},
                {"numbers", job.numbers},      {"optimizers", json::array()},           {"loaders", json::array()}};
  for (const auto* optimizer : ddp.optimizers()) {
    contents["optimizers"].push_back(json::parse(state_of(*optimizer, ddp.replica().parameters).scalars));
  }
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

/// The newest sound checkpoint, its contents and what is wrong with newer ones, as JSON; "" where there is none at all.
std::string choose(const fs::path& folder) {
  const auto all = checkpoints(folder);
  json damaged = json::array();
  for (const fs::path& path : all) {
    try {
      const Manifest manifest = verify_checkpoint(path);
      return json{{"path", path.string()}, {"contents", json::parse(manifest.contents)}, {"damaged", damaged}}.dump();
    } catch (const Error& error) {
      damaged.push_back(error.message());
    }
  }
  if (all.empty()) return "";
  throw Error(ErrorCode::Corrupt,
              fmt::format("{} holds no sound checkpoint: {}", folder.string(), damaged[0].get<std::string>()));
}

/// All that load() will change, read and checked. Nothing fails any more once it is there.
struct Staged {
  std::vector<NamedTensor> model, of_rank;
  std::vector<std::function<void()>> optimizers;
  json contents;
};

void require_same_job(const json& contents, const DistributedDataParallel& ddp, const JobState& job) {
  const auto require = [](const char* what, std::size_t have, std::size_t saved) {
    if (have == saved) return;
    throw Error(ErrorCode::InvalidArgument, fmt::format("this job has {} {}, the checkpoint {}", have, what, saved));
  };
  require("optimizer(s)", ddp.optimizers().size(), contents.at("optimizers").size());
  require("loader(s)", job.loaders.size(), contents.at("loaders").size());
  for (std::size_t i = 0; i < job.loaders.size(); ++i) {
    require("samples in its data set", job.loaders[i]->samples(), contents.at("loaders")[i].at("samples"));
  }
}

Staged stage(const fs::path& path, const json& contents, const DistributedDataParallel& ddp, const JobState& job) {
  Staged staged{.model = {}, .of_rank = {}, .optimizers = {}, .contents = contents};
  require_same_job(contents, ddp, job);
  staged.model = tensors_in(read_safetensors(path / kModel));
  require_same_tensors(staged.model, of_model(ddp.replica()), (path / kModel).string());
  const int rank = ddp.comm().rank();
  if (rank < contents.at("world_size").get<int>() &&
      (rank == 0 || contents.at("world_size").get<int>() == ddp.comm().world_size())) {
    staged.of_rank = tensors_in(read_safetensors(path / rank_file(rank)));
    require_same_tensors(staged.of_rank, of_rank(ddp), (path / rank_file(rank)).string());
  }
  for (std::size_t i = 0; i < ddp.optimizers().size(); ++i) {
    OptimizerState state{.scalars = contents.at("optimizers")[i].dump(),
                         .tensors = tensors_in(read_safetensors(path / optimizer_file(i)))};
    staged.optimizers.push_back(prepared_state(*ddp.optimizers()[i], ddp.replica().parameters, state));
  }
  return staged;
}

void apply(const Staged& staged, DistributedDataParallel& ddp, JobState& job) {
  const torch::NoGradGuard no_grad;
  for (const NamedTensor& named : of_model(ddp.replica())) {
    named.tensor.detach().copy_(find_tensor(staged.model, named.name));
  }
  if (!staged.of_rank.empty()) {
    for (const NamedTensor& buffer : ddp.replica().buffers) {
      buffer.tensor.detach().copy_(find_tensor(staged.of_rank, buffer_name(buffer.name)));
    }
    set_random_state(find_tensor(staged.of_rank, kRandom));
  }
  for (const auto& optimizer : staged.optimizers) optimizer();
  for (std::size_t i = 0; i < job.loaders.size(); ++i) {
    const json& position = staged.contents.at("loaders")[i];
    job.loaders[i]->resume_at({.epoch = position.at("epoch"), .done = position.at("done")});
  }
  job.numbers = staged.contents.at("numbers").get<std::map<std::string, double>>();
  for (const NamedTensor& parameter : ddp.trained()) parameter.tensor.mutable_grad().reset();
  ddp.resume_at(staged.contents.at("rounds"));
}

}  // namespace

fs::path save(const fs::path& folder, DistributedDataParallel& ddp, const JobState& job, SaveOptions options) {
  const Comm& comm = ddp.comm();
  const bool first = comm.rank() == 0;
  agree(comm, [&] {
    if (ddp.accumulated() > 0) {
      throw Error(
          ErrorCode::InvalidArgument,
          "save() was called while gradients are accumulated and not averaged; save after the optimizer's step");
    }
    require_numbers(job);
    return std::string();
  });
  require_equal_replicas(ddp);
  const fs::path part = agree(comm, [&] { return first ? begin_checkpoint(folder).string() : std::string(); })[0];
  try {
    const auto files = agree(comm, [&] { return write_files(part, ddp); });
    return agree(comm, [&]() -> std::string {
      return first ? commit_checkpoint(part, manifest_of(files, contents_of(ddp, job)), options.keep).string() : "";
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
    staged = stage(path, choice.at("contents"), ddp, job);
    return std::string();
  });
  apply(staged, ddp, job);
  return Loaded{.path = path, .rounds = ddp.rounds(), .damaged = choice.at("damaged").get<std::vector<std::string>>()};
}

}  // namespace paceline
