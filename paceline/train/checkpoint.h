#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paceline/train/data_loader.h"
#include "paceline/train/data_parallel.h"

namespace paceline {

/// What a training job consists of, beside the model: its optimizers (each paceline::Optimizer of the model) and random
/// states are saved without being named here.
struct JobState {
  std::vector<DataLoader*> loaders = {};
  /// The program's own numbers: an epoch, the best accuracy, a scheduler's step (see Scheduler<>). load() fills them
  /// in.
  std::map<std::string, double> numbers = {};
};

struct SaveOptions {
  /// Checkpoints to keep in the folder, this one among them.
  std::size_t keep = 2;
};

/// Collective, between two steps. Saves the whole job to a new folder in `folder`, which all ranks see: parameters,
/// buffers of each rank, optimizers with moments, counters and options, where the loaders are, each rank's random
/// state, and how many averagings there were. The last checkpoint stays as it is until this one is complete on the
/// disk. Returns its path.
///
/// Tensors are in safetensors files (Python: safetensors.torch.load_file), the rest in manifest.json. One that has
/// several names (tied weights) is stored under the first; metadata say which others it has. Throws the same
/// on all ranks, and leaves no half of a checkpoint: System naming the rank and file (disk full), InvalidArgument while
/// gradients are accumulated, for an optimizer of the user's own whose save() writes nothing, and where another job
/// saves to the folder: from its first save on, until its rank 0 ends, it is one job's. The communicator lives on. A
/// rank that calls it alone gets a Mismatch.
std::filesystem::path save(const std::filesystem::path& folder, DistributedDataParallel& ddp, const JobState& job = {},
                           SaveOptions options = {});

struct Loaded {
  std::filesystem::path path;
  std::uint64_t rounds = 0;  ///< Averagings before it was saved.
  /// Why newer checkpoints were passed over: each was damaged.
  std::vector<std::string> damaged;
};

/// Collective. Goes on from the newest sound checkpoint in `folder`: the next steps are, bit for bit, those that would
/// have followed the save on as many ranks. On another number of ranks loaders go on at the same sample, and ranks that
/// were not there before keep their random state and get rank 0's buffers. Nothing, and nothing changed, where there is
/// no checkpoint.
///
/// Throws the same on all ranks, and has changed nothing then: Corrupt where there are checkpoints but none is sound,
/// InvalidArgument naming the tensors where one is of another model, optimizer or data set. (Where an optimizer's own
/// load() throws, a class of the user's, all throw too, and nothing may go on.)
std::optional<Loaded> load(const std::filesystem::path& folder, DistributedDataParallel& ddp, JobState& job);

}  // namespace paceline
