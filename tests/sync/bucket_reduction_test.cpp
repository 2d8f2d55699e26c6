// Ways in which buckets are communicated: each in pieces or whole, what it makes of values, and what it says it cost.
#include "paceline/sync/bucket_reduction.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "paceline/sync/exact_reduction.h"
#include "paceline/sync/reducer.h"
#include "paceline/sync/rounded_reduction.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

constexpr std::size_t kPieceBytes = 4096;

/// One step of a model with a parameter in pieces and two in one bucket; what the timeline was told of buckets.
struct Step {
  std::vector<float> large, small;
  std::uint64_t bytes = 0;
  std::size_t operations = 0;
};

Step step_with(const Comm& comm, std::unique_ptr<BucketReduction> reduction, const std::vector<float>& large,
               const std::vector<float>& small) {
  Reducer reducer(comm,
                  {{"small", small.size(), Dtype::Float32},
                   {"other", small.size(), Dtype::Float32},
                   {"large", large.size(), Dtype::Float32}},
                  {.bucket_bytes = kPieceBytes}, std::move(reduction));
  Step step;
  comm.timeline().set_sink([&](const StepEvents& events) {
    for (const OperationInterval& operation : events.operations) {
      if (!operation.label.starts_with("bucket ")) continue;
      ++step.operations;
      step.bytes += operation.bytes;
      EXPECT_GE(operation.last_arrival, operation.launched);
      EXPECT_GE(operation.completed, operation.last_arrival);
    }
  });
  for (int round = 0; round < 2; ++round) {  // the second is laid out anew, and in pieces
    step = {};
    comm.timeline().begin_step(Phase::Forward);
    reducer.begin();
    reducer.store(2, reinterpret_cast<const std::byte*>(large.data()));
    reducer.store(1, reinterpret_cast<const std::byte*>(small.data()));
    reducer.store(0, reinterpret_cast<const std::byte*>(small.data()));
    reducer.finish();
    comm.timeline().enter(Phase::Optimizer);
    comm.timeline().pause();
  }
  const auto values = [&](std::size_t parameter, std::size_t count) {
    const auto* data = reinterpret_cast<const float*>(reducer.slot(parameter).data);
    return std::vector<float>(data, data + count);
  };
  step.large = values(2, large.size());
  step.small = values(0, small.size());
  return step;
}

/// Numbers that 16 bits have to round, another one for each rank and place.
std::vector<float> numbers(std::size_t count, int rank) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(i % 997) / 31 - 7 * static_cast<float>(rank) + 0.001f;
  }
  return values;
}

constexpr std::size_t kLarge = 3 * kPieceBytes / sizeof(float) + 5, kSmall = 33;

TEST(BucketReduction, ExactIsTheMeanAndCountsItsBytes) {
  test::on_ranks(3, ThreadEngine::SharedMemory, [](const Comm& comm) {
    const auto own = numbers(kLarge, comm.rank()), few = numbers(kSmall, comm.rank());
    const Step step = step_with(comm, nullptr, own, few);
    std::vector<std::vector<float>> of_ranks{numbers(kLarge, 0), numbers(kLarge, 1), numbers(kLarge, 2)};
    for (std::size_t i = 0; i < kLarge; ++i) {
      const float mean = (of_ranks[0][i] + of_ranks[1][i] + of_ranks[2][i]) * (1.0f / 3);
      ASSERT_EQ(step.large[i], mean) << i;
      if (i < kSmall) {
        ASSERT_EQ(step.small[i], mean) << i;
      }
    }
    EXPECT_EQ(step.operations, 5u) << "four pieces and a bucket";
    const auto lines = [](std::size_t bytes) { return (bytes + 63) / 64 * 64; };  // slots begin on 64 bytes
    EXPECT_EQ(step.bytes, lines(kLarge * sizeof(float)) + 2 * lines(kSmall * sizeof(float)));
  });
}

template <class T>
void round_on_all_ranks(Dtype wire, T (*narrow)(float)) {
  for (const ThreadEngine engine : {ThreadEngine::SharedMemory, ThreadEngine::Messages}) {
    test::on_ranks(3, engine, [&](const Comm& comm) {
      std::vector<std::string> sent_as;
      auto reduction = std::make_unique<RoundedReduction>(
          comm, wire, [&](const BucketPiece& piece, Dtype dtype, std::span<const std::byte> sent) {
            sent_as.emplace_back(to_string(dtype));
            EXPECT_EQ(2 * sent.size(), piece.bytes.size());
          });
      EXPECT_STREQ(reduction->codec(), to_string(wire));
      const Step exact = step_with(comm, nullptr, numbers(kLarge, comm.rank()), numbers(kSmall, comm.rank()));
      const Step step =
          step_with(comm, std::move(reduction), numbers(kLarge, comm.rank()), numbers(kSmall, comm.rank()));
      std::vector<std::vector<float>> of_ranks{numbers(kLarge, 0), numbers(kLarge, 1), numbers(kLarge, 2)};
      const auto rounded = [&](float value) { return to_float(narrow(value)); };
      for (std::size_t i = 0; i < kLarge; ++i) {
        const float sum = rounded(of_ranks[0][i]) + rounded(of_ranks[1][i]) + rounded(of_ranks[2][i]);
        ASSERT_EQ(step.large[i], rounded(sum * (1.0f / 3))) << i;
        if (i < kSmall) {
          ASSERT_EQ(step.small[i], step.large[i]) << i;
        }
      }
      EXPECT_EQ(step.operations, exact.operations);
      EXPECT_EQ(2 * step.bytes, exact.bytes) << "half of the bytes";
      EXPECT_EQ(sent_as, std::vector<std::string>(2 * step.operations, to_string(wire)));
    });
  }
}

TEST(BucketReduction, RoundedRoundsOnEachRankAndOnceMore) {
  round_on_all_ranks<Half>(Dtype::Float16, [](float v) { return to_half(v); });
  round_on_all_ranks<BFloat16>(Dtype::BFloat16, [](float v) { return to_bfloat16(v); });
}

/// Notes in which order it is called, and does nothing else.
class Noted final : public BucketReduction {
 public:
  explicit Noted(std::vector<std::string>& calls) : calls_(calls) {}
  const char* codec() const override { return "noted"; }
  bool takes_pieces() const override { return false; }
  void begin() override { calls_.emplace_back("begin"); }
  void launch(const BucketPiece& piece, const RoundCall&) override {
    EXPECT_EQ(piece.bytes.size(), piece.bucket_bytes);
    calls_.push_back(fmt::format("launch {}", piece.bucket));
  }
  bool test(std::size_t) override { return true; }
  void wait(std::size_t piece) override { calls_.push_back(fmt::format("wait {}", piece)); }
  void commit() override { calls_.emplace_back("commit"); }

 private:
  std::vector<std::string>& calls_;
};

TEST(BucketReduction, WholeBucketsComeInOrderAndAreWaitedForInOrder) {
  std::vector<std::string> calls;
  const Comm comm = Comm::solo();
  Reducer reducer(comm, {{"a", 10'000, Dtype::Float32}, {"b", 10, Dtype::Float32}}, {.bucket_bytes = kPieceBytes},
                  std::make_unique<Noted>(calls));
  reducer.begin();
  reducer.mark_ready(0);
  EXPECT_EQ(calls, std::vector<std::string>{"begin"}) << "bucket 1 waits for bucket 0";
  reducer.mark_ready(1);
  reducer.finish();
  EXPECT_EQ(calls, (std::vector<std::string>{"begin", "launch 0", "launch 1", "wait 0", "wait 1"}));
  reducer.commit();
  EXPECT_EQ(calls.back(), "commit");
}

// A parameter of no elements, alone in its bucket since no other has its type: nothing is launched for it.
TEST(BucketReduction, ABucketOfNothingIsNoPiece) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    Reducer reducer(comm, {{"a", 10, Dtype::Float32}, {"b", 10, Dtype::Float32}, {"nothing", 0, Dtype::Float64}}, {});
    const std::vector<float> gradient(10, 1.0f);
    for (int round = 0; round < 3; ++round) {
      reducer.begin();
      reducer.mark_ready(2);
      reducer.store(1, reinterpret_cast<const std::byte*>(gradient.data()));
      reducer.store(0, reinterpret_cast<const std::byte*>(gradient.data()));
      reducer.finish();
    }
    EXPECT_EQ(*reinterpret_cast<const float*>(reducer.slot(0).data), 1.0f);
  });
}

}  // namespace
}  // namespace paceline
