#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "paceline/comm/comm.h"
#include "paceline/data/sampler.h"

namespace paceline {

/// Samples stacked along the first dimension, and their targets.
struct Batch {
  torch::Tensor data, target;
  std::int64_t size() const { return data.size(0); }
};

/// What a DataLoader reads from. get() is called from the loader's threads, several at a time.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::size_t size() const = 0;
  virtual Batch get(std::span<const std::uint64_t> indices) const = 0;
};

/// Tensors whose first dimension counts samples.
class TensorDataset final : public Dataset {
 public:
  /// Throws InvalidArgument unless both have the same, non-zero first dimension.
  TensorDataset(torch::Tensor data, torch::Tensor target);
  std::size_t size() const override;
  Batch get(std::span<const std::uint64_t> indices) const override;

 private:
  torch::Tensor data_, target_;
};

struct LoaderOptions {
  /// Samples per step and rank.
  std::size_t batch_size = 64;
  /// Of the order of samples; the same on all ranks.
  std::uint64_t seed = 0;
  SampleOrder order = SampleOrder::Shuffled;
  /// What becomes of samples that do not divide by the world size. Exact reads each once and is for evaluation.
  SampleTail tail = SampleTail::Pad;
  /// Batches read ahead, and threads that read them. 0 threads: read when asked for.
  std::size_t prefetch = 4;
  std::size_t threads = 1;
};

/// Gives each rank its part of a data set, in another order every epoch. It knows rank and world from `comm`, so no two
/// ranks are fed the same sample (but for what Pad repeats to make their parts equal), and it counts epochs itself.
///
///     for (auto& batch : loader.epoch()) { ... }
///
/// Construction is collective and throws Mismatch unless all ranks give the same size, batch size, seed, order and
/// tail. Throws InvalidArgument for a batch size of 0, or fewer samples than ranks unless `tail` is Exact. An exception
/// of the data set's comes out of the loop. Time spent waiting in it goes to the step's account as "data_wait".
class DataLoader {
 public:
  DataLoader(std::shared_ptr<const Dataset> dataset, const Comm& comm, LoaderOptions options = {});
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  class Iterator;
  /// The batches of one epoch, once: a range for `for`. Ends the one before, if it was left early.
  class Epoch {
   public:
    Epoch(Epoch&& other) noexcept : loader_(std::exchange(other.loader_, nullptr)) {}
    Epoch& operator=(Epoch&&) = delete;
    ~Epoch();
    Iterator begin();
    Iterator end();

   private:
    friend class DataLoader;
    explicit Epoch(DataLoader& loader) : loader_(&loader) {}
    DataLoader* loader_;
  };
  Epoch epoch();

  /// Batches of an epoch on this rank: all ranks have the same number unless `tail` is Exact.
  std::size_t batches() const;
  /// Number of the epoch that epoch() will give next, from 0.
  std::uint64_t next_epoch() const;

  /// How far the reading is: an epoch, and how many samples of it all ranks together have been given. The same on all
  /// ranks as long as they are in the same step.
  struct Position {
    std::uint64_t epoch = 0, done = 0;
    bool operator==(const Position&) const = default;
  };
  Position position() const;
  std::size_t samples() const;
  /// The next epoch() goes on from there, whatever the number of ranks was, without a sample twice or left out. Epochs
  /// after it are whole.
  void resume_at(Position position);

 private:
  friend class Iterator;
  struct State;
  std::unique_ptr<State> state_;
};

/// An input iterator; enough for a range-for.
class DataLoader::Iterator {
 public:
  Batch& operator*() { return batch_; }
  Iterator& operator++();
  bool operator!=(const Iterator& other) const { return loader_ != other.loader_; }

 private:
  friend class Epoch;
  explicit Iterator(DataLoader* loader) : loader_(loader) {}
  DataLoader* loader_;  // null at the end
  Batch batch_;
};

}  // namespace paceline
