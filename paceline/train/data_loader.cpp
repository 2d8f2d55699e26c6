#include "paceline/train/data_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "paceline/base/origin.h"

namespace paceline {

TensorDataset::TensorDataset(torch::Tensor data, torch::Tensor target)
    : data_(std::move(data)), target_(std::move(target)) {
  if (data_.dim() < 1 || target_.dim() < 1 || data_.size(0) != target_.size(0) || data_.size(0) == 0) {
    throw Error(ErrorCode::InvalidArgument,
                "TensorDataset: data and target must hold the same number of samples, and some");
  }
}

std::size_t TensorDataset::size() const { return static_cast<std::size_t>(data_.size(0)); }

Batch TensorDataset::get(std::span<const std::uint64_t> indices) const {
  const torch::NoGradGuard no_grad;
  auto* first = const_cast<std::uint64_t*>(indices.data());
  const auto rows = torch::from_blob(first, {static_cast<std::int64_t>(indices.size())}, torch::kInt64);
  return {data_.index_select(0, rows), target_.index_select(0, rows)};
}

/// Threads that read batches ahead, at most `prefetch` of them beyond what the loop has taken.
struct DataLoader::State {
  State(std::shared_ptr<const Dataset> from, const Comm& with, LoaderOptions how);
  ~State();

  /// Of so many samples; the last one may be smaller.
  std::size_t batches_of(std::size_t samples) const {
    return samples / options.batch_size + (samples % options.batch_size == 0 ? 0 : 1);
  }
  std::size_t batches() const { return batches_of(sampler.samples_per_epoch()); }
  Batch read(const std::vector<std::uint64_t>& of, std::size_t batch) const;
  void require_same_order() const;
  void resume_at(Position position);
  void begin_epoch();
  Batch next();  // only while taken < total
  void run();

  const std::shared_ptr<const Dataset> dataset;
  const Comm comm;
  const LoaderOptions options;
  Sampler sampler;
  std::uint64_t done_before = 0;  // this epoch began, in a run that was resumed

  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex.
  std::shared_ptr<const std::vector<std::uint64_t>> indices = std::make_shared<std::vector<std::uint64_t>>();
  std::uint64_t epoch = 0;
  std::size_t total = 0, claimed = 0, taken = 0;
  std::map<std::size_t, Batch> ready;
  std::exception_ptr failure;
  bool stopping = false;

  std::vector<std::thread> threads;
  const Origin origin;
};

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, const Comm& comm, LoaderOptions options)
    : state_(std::make_unique<State>(std::move(dataset), comm, options)) {}

DataLoader::~DataLoader() {
  if (!state_->origin.here()) never_destroy(std::shared_ptr<State>(std::move(state_)));
}

std::size_t DataLoader::batches() const { return state_->batches(); }
std::uint64_t DataLoader::next_epoch() const { return state_->sampler.epoch(); }

DataLoader::Position DataLoader::position() const {
  const State& state = *state_;  // only this thread changes what is read here
  if (state.taken == state.total) return {state.sampler.epoch(), state.sampler.done()};
  const std::uint64_t read = state.taken * std::min(state.options.batch_size, state.dataset->size()) *
                             static_cast<std::uint64_t>(state.comm.world_size());
  return {state.sampler.epoch() - 1, std::min<std::uint64_t>(state.done_before + read, state.dataset->size())};
}

std::size_t DataLoader::samples() const { return state_->dataset->size(); }
void DataLoader::resume_at(Position position) { state_->resume_at(position); }

DataLoader::Epoch DataLoader::epoch() {
  state_->begin_epoch();
  return Epoch(*this);
}

DataLoader::Epoch::~Epoch() {
  if (loader_ != nullptr) loader_->state_->comm.timeline().pause();
}

DataLoader::Iterator DataLoader::Epoch::begin() {
  Iterator first(loader_);
  ++first;
  return first;
}

DataLoader::Iterator DataLoader::Epoch::end() { return Iterator(nullptr); }

DataLoader::Iterator& DataLoader::Iterator::operator++() {
  State& state = *loader_->state_;
  batch_ = {};
  if (state.taken == state.total) {  // only this thread changes them
    loader_ = nullptr;
    return *this;
  }
  Timeline& timeline = state.comm.timeline();
  timeline.begin_step(Phase::DataWait);
  batch_ = state.next();
  timeline.add_samples(static_cast<double>(batch_.size()));
  timeline.enter(Phase::Forward);
  return *this;
}

DataLoader::State::State(std::shared_ptr<const Dataset> from, const Comm& with, LoaderOptions how)
    : dataset(std::move(from)),
      comm(with),
      options(how),
      sampler({.size = dataset->size(),
               .rank = comm.rank(),
               .world_size = comm.world_size(),
               .seed = options.seed,
               .order = options.order,
               .tail = options.tail}) {
  if (options.batch_size == 0) {
    throw Error(ErrorCode::InvalidArgument, "DataLoader: the batch size must be at least 1");
  }
  require_same_order();
  comm.timeline().set_steps_begin_in_loader();
  for (std::size_t i = 0; i < options.threads; ++i) threads.emplace_back([this] { run(); });
}

DataLoader::State::~State() {
  {
    std::lock_guard lock(mutex);
    stopping = true;
  }
  changed.notify_all();
  for (std::thread& thread : threads) thread.join();
}

// Ranks that shuffle differently would read some samples twice and others never.
void DataLoader::State::require_same_order() const {
  const char* order = options.order == SampleOrder::Shuffled ? "shuffled" : "sequential";
  const char* tail = options.tail == SampleTail::Pad ? "padded" : options.tail == SampleTail::Drop ? "cut" : "exact";
  const auto all = comm.gather(fmt::format("{} samples in batches of {}, seed {}, {}, {}", dataset->size(),
                                           options.batch_size, options.seed, order, tail));
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& text) { return text != all[0]; });
  if (other == all.end()) return;
  const auto peer = static_cast<int>(other - all.begin());
  comm.fail({ErrorCode::Mismatch,
             fmt::format("DataLoader: rank 0 reads {}, but rank {} reads {}. All ranks must give the same: the loader "
                         "itself gives each its part",
                         all[0], peer, *other),
             comm.rank(), peer});
}

void DataLoader::State::resume_at(Position position) {
  std::lock_guard lock(mutex);
  sampler.resume_at(position.epoch, position.done);
  ++epoch;  // what threads still read is of no use
  total = claimed = taken = 0;
  ready.clear();
}

void DataLoader::State::begin_epoch() {
  done_before = sampler.done();
  auto next_indices = std::make_shared<const std::vector<std::uint64_t>>(sampler.next_epoch());
  std::lock_guard lock(mutex);
  indices = std::move(next_indices);
  ++epoch;
  total = batches_of(indices->size());
  claimed = taken = 0;
  ready.clear();
  failure = nullptr;
  changed.notify_all();
}

Batch DataLoader::State::next() {
  if (threads.empty()) return read(*indices, taken++);
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return failure || ready.contains(taken); });
  if (failure) std::rethrow_exception(failure);
  const auto found = ready.find(taken++);
  Batch batch = std::move(found->second);
  ready.erase(found);
  changed.notify_all();
  return batch;
}

void DataLoader::State::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] {
      return stopping || (!failure && claimed < total && claimed < taken + std::max<std::size_t>(options.prefetch, 1));
    });
    if (stopping) return;
    const std::size_t batch = claimed++;
    const std::uint64_t of_epoch = epoch;
    const auto of = indices;
    lock.unlock();
    Batch read_batch;
    std::exception_ptr error;
    try {
      read_batch = read(*of, batch);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (of_epoch != epoch) continue;  // the loop was left early
    if (error) failure = error;
    else ready.emplace(batch, std::move(read_batch));
    changed.notify_all();
  }
}

Batch DataLoader::State::read(const std::vector<std::uint64_t>& of, std::size_t batch) const {
  const std::size_t begin = batch * options.batch_size;
  return dataset->get(std::span(of).subspan(begin, std::min(options.batch_size, of.size() - begin)));
}

}  // namespace paceline
