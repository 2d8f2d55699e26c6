// Saving a whole job and going on from it, and what happens when the disk, the file or the model is not right.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "paceline/base/crc32c.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/failures.h"
#include "tests/train/saved_job.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using test::expect_all_say;
using test::failures;
using test::plain_model;
using test::Samples;
using test::SmallJob;
using torch::nn::Sequential;

constexpr std::size_t kBatch = 3;

/// With dropout, for the random state, and batch norm, for buffers that differ by rank.
Sequential model_with_everything() {
  return Sequential(torch::nn::Linear(12, 16), torch::nn::BatchNorm1d(16), torch::nn::Dropout(0.3),
                    torch::nn::Linear(16, 5));
}

/// A job of one rank. Ranks are threads here, which share libtorch's random generator: one at a time draws from it, so
/// that a run can be repeated.
template <class Base, class Options>
struct Training {
  const Comm comm;
  Sequential model = model_with_everything();
  DistributedDataParallel ddp;
  Optimizer<Base> optimizer;
  DataLoader loader;
  JobState job;

  Training(const Comm& with, const Options& options, const Samples& all)
      : comm(with),
        ddp(*model, comm, {.bucket_bytes = 256, .check_replicas_every = 2}),
        optimizer(ddp, model->parameters(), options),
        loader(std::make_shared<TensorDataset>(all.data, all.target), comm, {.batch_size = kBatch, .seed = 5}),
        job{.loaders = {&loader}, .numbers = {{"steps", 0}}} {}

  /// `steps` more, over as many epochs as it takes; a hash of all that was fed.
  std::uint64_t run(int steps) {
    std::uint64_t fed = 0;
    while (steps > 0) {
      for (auto& batch : loader.epoch()) {
        optimizer.zero_grad();
        fed = hash_of(std::to_string(fed), test::hash_of_tensors({batch.data}));
        torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target).backward();
        optimizer.param_groups()[0].options().set_lr(0.02 / (1 + ++job.numbers["steps"]));
        optimizer.step();
        if (--steps == 0) break;
      }
    }
    return fed;
  }
  std::uint64_t hash() { return test::hash_of_job(*model, optimizer, ddp); }
};

// Three steps, save, load into a new job, three more are six, bit for bit; in one process, where the random state
// is not shared.
template <class Base, class Options>
void check_resume(const Options& options, int steps_before) {
  const TemporaryFolder folder;
  const Samples all(20);  // an epoch has 7 steps, the last of 2 samples
  const Comm comm = Comm::solo();
  torch::manual_seed(3);
  Training<Base, Options> whole(comm, options, all);
  Training<Base, Options> first(comm, options, all);
  torch::manual_seed(1);
  for (std::size_t i = 0; i < whole.model->parameters().size(); ++i) {
    const torch::NoGradGuard no_grad;
    first.model->parameters()[i].copy_(whole.model->parameters()[i]);
  }
  torch::manual_seed(9);
  whole.run(steps_before);
  const auto fed = whole.run(6);
  torch::manual_seed(9);
  first.run(steps_before);
  first.run(3);
  const auto path = save(folder.path, first.ddp, first.job);
  torch::manual_seed(77);  // another process would have another state
  Training<Base, Options> second(comm, options, all);
  const auto loaded = load(folder.path, second.ddp, second.job);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->path, path);
  EXPECT_TRUE(loaded->damaged.empty());
  EXPECT_EQ(loaded->rounds, static_cast<std::uint64_t>(steps_before + 3));
  EXPECT_EQ(second.job.numbers["steps"], steps_before + 3);
  EXPECT_EQ(second.hash(), first.hash());
  second.run(3);
  EXPECT_EQ(second.hash(), whole.hash());
  EXPECT_EQ(second.ddp.rounds(), static_cast<std::uint64_t>(steps_before + 6));
  EXPECT_NE(fed, 0u);
}

TEST(Resume, ThreeAndThreeStepsAreSixBitForBit) {
  check_resume<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true), 0);
  check_resume<torch::optim::SGD>(torch::optim::SGDOptions(0.1), 3);
  check_resume<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.5), 4);
  check_resume<torch::optim::SGD>(torch::optim::SGDOptions(0.1), 2);
  check_resume<torch::optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true), 0);
  check_resume<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2), 5);
  check_resume<torch::optim::Adagrad>(torch::optim::AdagradOptions(1e-2), 0);
  check_resume<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-2).momentum(0.9).centered(true), 0);
}

TEST(Resume, OfSeveralRanksEachGetsItsOwnBuffersBack) {
  for (const int n : {2, 3}) {
    const TemporaryFolder folder;
    const Samples all(60);
    std::vector<std::uint64_t> wanted(static_cast<std::size_t>(n));
    test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      SmallJob job(comm, all);
      job.run(3);
      save(folder.path, job.ddp, job.job);
      job.run(2);  // a new epoch in both runs
      wanted[static_cast<std::size_t>(comm.rank())] = 0;
    });
    test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      SmallJob once(comm, all);
      JobState& job = once.job;
      ASSERT_TRUE(load(folder.path, once.ddp, job));
      once.run(4);
      wanted[static_cast<std::size_t>(comm.rank())] = once.hash();
    });
    EXPECT_NE(wanted[0], wanted[1]) << "running statistics are each rank's own";
    test::on_ranks(n, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      SmallJob first(comm, all);
      load(folder.path, first.ddp, first.job);
      first.run(2);
      save(folder.path, first.ddp, first.job);
      SmallJob second(comm, all);
      load(folder.path, second.ddp, second.job);
      EXPECT_EQ(second.hash(), first.hash());
      second.run(2);
      EXPECT_EQ(second.hash(), wanted[static_cast<std::size_t>(comm.rank())]);
    });
  }
}

// The rest of the epoch is read by another number of ranks, each sample once.
TEST(Resume, OnAnotherNumberOfRanksReadsTheRestOfTheEpochOnce) {
  // Without batch norm, which refuses a last batch of one sample.
  const auto network = [] { return Sequential(torch::nn::Linear(12, 8), torch::nn::Tanh(), torch::nn::Linear(8, 5)); };
  for (const auto& [before, after] : {std::pair(2, 3), std::pair(3, 2), std::pair(3, 1), std::pair(1, 4)}) {
    const TemporaryFolder folder;
    const Samples all(61);
    std::multiset<float> fed;
    std::mutex mutex;
    const auto note = [&](const std::vector<float>& samples) {
      const std::lock_guard lock(mutex);
      fed.insert(samples.begin(), samples.end());
    };
    test::on_ranks(before, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      SmallJob job(comm, all, network());
      note(job.run(4));
      save(folder.path, job.ddp, job.job);
    });
    test::on_ranks(after, ThreadEngine::SharedMemory, [&](const Comm& comm) {
      SmallJob job(comm, all, network());
      ASSERT_TRUE(load(folder.path, job.ddp, job.job));
      EXPECT_TRUE(test::same_on_all_ranks(comm, test::hash_of_tensors(job.model->parameters())));
      note(job.run(1000));
      EXPECT_EQ(job.loader.position(), (DataLoader::Position{1, 0}));
    });
    std::set<float> once(fed.begin(), fed.end());
    EXPECT_EQ(once.size(), 61u);
    EXPECT_LT(fed.size(), 61u + static_cast<std::size_t>(after)) << "but for what makes the ranks' parts equal";
  }
}

TEST(Resume, WithoutACheckpointIsAFreshStart) {
  const TemporaryFolder folder;
  const Samples all(12);
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    SmallJob job(comm, all);
    EXPECT_FALSE(load(folder.path / "none", job.ddp, job.job));
    EXPECT_FALSE(load(folder.path, job.ddp, job.job));
  });
}

TEST(Damage, TheLastSoundCheckpointIsTaken) {
  const TemporaryFolder folder;
  const Samples all(60);
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    SmallJob job(comm, all);
    job.run(2);
    const fs::path good = save(folder.path, job.ddp, job.job);
    const auto hash = job.hash();
    job.run(1);
    const fs::path newest = save(folder.path, job.ddp, job.job);
    comm.barrier();
    if (comm.rank() == 0) fs::resize_file(newest / "optimizer-0.safetensors", 100);  // torn
    comm.barrier();
    SmallJob again(comm, all);
    const auto loaded = load(folder.path, again.ddp, again.job);
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->path, good);
    ASSERT_EQ(loaded->damaged.size(), 1u);
    EXPECT_NE(loaded->damaged[0].find("optimizer-0.safetensors has 100 bytes where"), std::string::npos);
    EXPECT_EQ(again.hash(), hash);
    comm.barrier();
    if (comm.rank() == 0) fs::remove(good / "manifest.json");
    comm.barrier();
    const auto before = again.hash();
    try {
      load(folder.path, again.ddp, again.job);
      ADD_FAILURE() << "loaded";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Corrupt);
      EXPECT_NE(error.message().find("holds no sound checkpoint"), std::string::npos) << error.message();
    }
    EXPECT_EQ(again.hash(), before);
    again.run(1);  // the communicator lives on
  });
}

/// Changes the body of a manifest and gives it the checksum that belongs to it.
void rewrite(const fs::path& checkpoint, const std::function<void(nlohmann::json&)>& change) {
  std::ifstream stream(checkpoint / "manifest.json");
  nlohmann::json outer = nlohmann::json::parse(stream);
  change(outer["body"]);
  const std::string body = outer["body"].dump();
  outer["crc32c"] = crc32c(std::as_bytes(std::span(body)));
  std::ofstream(checkpoint / "manifest.json") << outer.dump();
}

// As somebody else could have written it, with the right checksums.
TEST(Damage, AManifestOfAnotherFormIsSaidToBeDamagedAndChangesNothing) {
  using nlohmann::json;
  const std::vector<std::function<void(json&)>> changes = {
      [](json& body) { body["contents"] = json::array(); },
      [](json& body) { body["contents"].erase("world_size"); },
      [](json& body) { body["contents"]["world_size"] = 2'000'000'000; },
      [](json& body) {
        body["contents"]["numbers"] = {1, 2};
      },
      [](json& body) { body["contents"]["rounds"] = "many"; },
      [](json& body) { body["contents"]["loaders"][0]["epoch"] = "first"; },
      [](json& body) { body["contents"]["loaders"][0] = nullptr; },
      [](json& body) { body["contents"]["optimizers"].push_back(1); },
      [](json& body) { body["contents"]["optimizers"][0]["groups"] = 1; },
      [](json& body) { body["contents"]["optimizers"][0]["state"]["0.weight"]["tensors"] = 1; },
      [](json& body) { body["files"].clear(); },
  };
  const TemporaryFolder folder;
  const Samples all(12);
  const Comm comm = Comm::solo();
  SmallJob job(comm, all);
  job.run(2);
  const fs::path path = save(folder.path, job.ddp, job.job);
  std::ifstream stream(path / "manifest.json");
  const std::string good((std::istreambuf_iterator<char>(stream)), {});
  SmallJob other(comm, all);
  other.run(1);
  const auto before = other.hash();
  for (std::size_t i = 0; i < changes.size(); ++i) {
    std::ofstream(path / "manifest.json") << good;
    rewrite(path, changes[i]);
    try {
      load(folder.path, other.ddp, other.job);
      ADD_FAILURE() << "loaded with change " << i;
    } catch (const Error& error) {
      EXPECT_NE(error.code(), ErrorCode::System) << i << ": " << error.message();
      EXPECT_NE(error.message().find("damaged"), std::string::npos) << i << ": " << error.message();
    }
    EXPECT_EQ(other.hash(), before) << i;
    EXPECT_EQ(other.ddp.rounds(), 1u) << i;
  }
}

TEST(Damage, AManifestOfAnotherFormLeavesTheOneBefore) {
  const TemporaryFolder folder;
  const Samples all(12);
  SmallJob job(Comm::solo(), all);
  job.run(1);
  const fs::path good = save(folder.path, job.ddp, job.job);
  job.run(1);
  rewrite(save(folder.path, job.ddp, job.job), [](nlohmann::json& body) { body["contents"]["rounds"] = "many"; });
  const auto loaded = load(folder.path, job.ddp, job.job);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->path, good);
  EXPECT_EQ(loaded->damaged.size(), 1u);
}

// Also where the message that says what is wrong quotes bytes that are no text.
TEST(Damage, OfAnyByteOfTheManifestLeavesTheOneBefore) {
  const TemporaryFolder folder;
  const Samples all(60);
  SmallJob job(Comm::solo(), all);
  job.run(1);
  const fs::path good = save(folder.path, job.ddp, job.job);
  job.run(1);
  const fs::path manifest = save(folder.path, job.ddp, job.job) / "manifest.json";
  std::string text(fs::file_size(manifest), '\0');
  std::ifstream(manifest).read(text.data(), static_cast<std::streamsize>(text.size()));
  for (std::size_t at = 0; at < text.size(); at += 7) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x80);
    std::ofstream(manifest) << damaged;
    const auto loaded = load(folder.path, job.ddp, job.job);
    ASSERT_TRUE(loaded) << "byte " << at;
    EXPECT_EQ(loaded->path, good) << "byte " << at;
    EXPECT_EQ(loaded->damaged.size(), 1u) << "byte " << at;
  }
}

TEST(Damage, ACheckpointOfAnotherJobIsRefusedByName) {
  const TemporaryFolder folder;
  const Samples all(60);
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    SmallJob job(comm, all);
    job.run(1);
    save(folder.path, job.ddp, job.job);
    const auto refused = [&](SmallJob& other, const std::vector<std::string>& parts) {
      const auto before = other.hash();
      try {
        load(folder.path, other.ddp, other.job);
        ADD_FAILURE() << "loaded";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
        expect_all_say({error.message()}, parts);
      }
      EXPECT_EQ(other.hash(), before) << "nothing was applied";
    };
    SmallJob wider(comm, all, Sequential(torch::nn::Linear(12, 9), torch::nn::BatchNorm1d(9), torch::nn::Linear(9, 5)));
    refused(wider, {"model.safetensors is of another model", "'0.weight' Float [8, 12] where '0.weight' Float [9, 12]",
                    "more"});
    SmallJob longer(comm, all,
                    Sequential(torch::nn::Linear(12, 8), torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 5),
                               torch::nn::Linear(5, 5)));
    refused(longer, {"it lacks '3.weight', '3.bias'"});
    SmallJob shorter(comm, all, Sequential(torch::nn::Linear(12, 8), torch::nn::BatchNorm1d(8)));
    refused(shorter, {"it has in addition", "'2.weight'"});
    const Samples fewer(59);
    SmallJob other_data(comm, fewer);
    refused(other_data, {"this job has 59 samples in its data set, the checkpoint 60"});
    Sequential model = plain_model();
    DistributedDataParallel ddp(*model, comm);
    Optimizer<torch::optim::SGD> sgd(ddp, model->parameters(), torch::optim::SGDOptions(0.1));
    try {
      load(folder.path, ddp, job.job);
      ADD_FAILURE() << "loaded";
    } catch (const Error& error) {
      EXPECT_NE(error.message().find("the optimizer is SGD, what is to be loaded is of Adam"), std::string::npos);
    }
  });
}

TEST(Save, OnOneRankOnlyIsAnErrorThatSaysSo) {
  const TemporaryFolder folder;
  const Samples all(60);
  const auto messages = failures(2, [&](const Comm& comm) {
    SmallJob job(comm, all);
    job.run(1);
    if (comm.rank() == 0) save(folder.path, job.ddp, job.job);
    job.run(1);
  });
  expect_all_say(messages, {"MISMATCH", "rank 0 calls all_gather"});
  EXPECT_TRUE(fs::is_empty(folder.path));
}

TEST(Save, InTheMiddleOfAccumulationIsRefusedOnAllRanks) {
  const TemporaryFolder folder;
  const Samples all(60);
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    SmallJob job(comm, all);
    const auto only_accumulate = job.ddp.no_sync();
    job.model->forward(all.data).sum().backward();
    EXPECT_THROW(save(folder.path, job.ddp, job.job), Error);
  });
}

}  // namespace
}  // namespace paceline
