// Ranks that call something else than rank 0, in each way there is: the same Mismatch on all of them, naming both
// sides, and not a byte of anybody's memory changed.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <set>
#include <vector>

#include "paceline/sync/reducer.h"
#include "tests/support/rank_memory.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

/// One rank as a kind of disagreement sees it.
struct Rank {
  const Comm& comm;
  const test::RankMemory& memory;
  std::size_t count;  // of elements, of the whole or of each part
  bool odd;           // this is the one that disagrees
  ThreadEngine engine;

  Operation operation(Collective kind) const {
    return {.kind = kind,
            .dtype = Dtype::Float32,
            .count = kind == Collective::Barrier ? 0 : count,
            .in = memory.in(),
            .out = kind == Collective::Broadcast ? memory.in() : memory.out()};
  }
};

/// A way to disagree: what the odd rank calls, and how the message describes that (with %N for the count).
struct Kind {
  std::string name;
  std::function<void(const Rank&)> call;
  std::string described;
};

/// All ranks call `kind`; the odd one's call is what `deviate` makes of it.
Kind call(std::string name, Collective kind, std::function<void(Operation&, const Rank&)> deviate,
          std::string described, Dtype dtype = Dtype::Float32) {
  return {std::move(name),
          [=](const Rank& rank) {
            Operation operation = rank.operation(kind);
            operation.dtype = dtype;
            if (rank.odd) deviate(operation, rank);
            rank.comm.run(operation);
          },
          std::move(described)};
}

Kind other_kind(Collective theirs, Collective odd) {
  return call(
      std::string(to_string(theirs)) + "_and_" + to_string(odd), theirs,
      [odd](Operation& operation, const Rank& rank) { operation = rank.operation(odd); }, to_string(odd));
}

Kind other_count(Collective kind) {
  return call(
      std::string("count_of_") + to_string(kind), kind, [](Operation& o, const Rank&) { --o.count; },
      "(float32 x %N-1");
}

Kind other_root(Collective kind) {
  return call(
      std::string("root_of_") + to_string(kind), kind, [](Operation& o, const Rank&) { o.root = 1; }, "root 1");
}

Kind other_type(Collective kind, Dtype theirs, Dtype odd) {
  return call(
      std::string("type_of_") + to_string(kind) + "_" + to_string(odd), kind,
      [odd](Operation& o, const Rank&) { o.dtype = odd; }, std::string("(") + to_string(odd) + " x", theirs);
}

Kind other_reduction(Collective kind, ReduceOp odd) {
  return call(
      std::string(to_string(odd)) + "_in_" + to_string(kind), kind,
      [odd](Operation& o, const Rank&) { o.reduce = odd; }, std::string(", ") + to_string(odd));
}

/// The same number of elements in all, in parts of other lengths on the odd rank.
Kind other_parts(Collective kind) {
  return {std::string("parts_of_") + to_string(kind),
          [kind](const Rank& rank) {
            std::vector<std::size_t> counts(static_cast<std::size_t>(rank.comm.world_size()), rank.count - 1);
            if (rank.odd) ++counts[0], --counts[1];
            Operation operation = rank.operation(kind);
            operation.count = 0;
            operation.counts = counts;
            rank.comm.run(operation);
          },
          "in uneven parts"};
}

/// Labels in this order on most ranks, in the other on the odd one.
void labelled(const Rank& rank, const char* first, const char* second) {
  Operation operation = rank.operation(Collective::AllReduce);
  operation.out = operation.count > 0 ? rank.memory.out() : nullptr;
  for (const char* label : {rank.odd ? second : first, rank.odd ? first : second}) {
    operation.label = label;
    rank.comm.run(operation);
  }
}

/// A step of data-parallel training.
void step(Reducer& reducer, std::size_t parameters) {
  reducer.begin();
  for (std::size_t i = parameters; i-- > 0;) reducer.mark_ready(i);
  reducer.finish();
}

Kind other_plan(std::string name, std::vector<ParameterInfo> odd, std::size_t odd_bucket_bytes) {
  return {std::move(name),
          [odd = std::move(odd), odd_bucket_bytes](const Rank& rank) {
            const std::vector<ParameterInfo> theirs{{"a", 100, Dtype::Float32}, {"b", 400, Dtype::Float32}};
            const auto& parameters = rank.odd ? odd : theirs;
            Reducer reducer(rank.comm, parameters, {.bucket_bytes = rank.odd ? odd_bucket_bytes : 65536});
            std::vector<std::vector<std::byte>> before;
            for (std::size_t i = 0; i < parameters.size(); ++i) {
              auto* const data = reducer.slot(i).data;
              std::memset(data, rank.comm.rank() + 3, parameters[i].bytes());
              before.emplace_back(data, data + parameters[i].bytes());
            }
            try {
              step(reducer, parameters.size());
            } catch (const Error&) {
              for (std::size_t i = 0; i < parameters.size(); ++i) {
                EXPECT_EQ(std::memcmp(reducer.slot(i).data, before[i].data(), before[i].size()), 0)
                    << "gradient " << i << " was combined on rank " << rank.comm.rank();
              }
              throw;
            }
          },
          "'step 0 "};
}

std::vector<Kind> kinds() {
  using enum Collective;
  std::vector<Kind> all;
  for (const auto& [theirs, odd] : std::vector<std::pair<Collective, Collective>>{{AllReduce, ReduceScatter},
                                                                                  {AllReduce, AllGather},
                                                                                  {AllReduce, Broadcast},
                                                                                  {AllReduce, Barrier},
                                                                                  {AllReduce, Reduce},
                                                                                  {ReduceScatter, AllToAll},
                                                                                  {AllGather, Gather},
                                                                                  {Broadcast, Scatter},
                                                                                  {Reduce, Gather},
                                                                                  {Scatter, ReduceScatter},
                                                                                  {AllToAll, AllGather},
                                                                                  {Barrier, AllReduce}}) {
    all.push_back(other_kind(theirs, odd));
  }
  for (const Collective kind : {AllReduce, ReduceScatter, AllGather, Broadcast, Reduce, Gather, Scatter, AllToAll}) {
    all.push_back(other_count(kind));
  }
  all.push_back(call(
      "count_none", AllReduce, [](Operation& o, const Rank&) { o.count = 0; }, "(float32 x 0, sum)"));
  all.push_back(call(
      "count_of_another_size_class", AllReduce,
      [](Operation& o, const Rank& rank) { o.count = rank.count > 100 ? 3 : rank.count - 1; },
      "all_reduce #1 (float32 x "));
  all.push_back(call(
      "whole_of_a_piece", AllReduce, [](Operation& o, const Rank& rank) { o.call_count = rank.count + 1000; },
      "(float32 x %N+1000"));
  for (const Collective kind : {Broadcast, Reduce, Gather, Scatter}) all.push_back(other_root(kind));
  all.push_back(other_type(AllReduce, Dtype::Float32, Dtype::Int32));
  all.push_back(other_type(AllReduce, Dtype::Float32, Dtype::Float64));
  all.push_back(other_type(AllReduce, Dtype::Float16, Dtype::BFloat16));
  all.push_back(other_type(AllReduce, Dtype::Int64, Dtype::UInt8));
  all.push_back(other_type(Broadcast, Dtype::Float32, Dtype::Int32));
  all.push_back(other_type(AllToAll, Dtype::UInt8, Dtype::Float16));
  all.push_back(other_reduction(AllReduce, ReduceOp::Max));
  all.push_back(other_reduction(AllReduce, ReduceOp::Mean));
  all.push_back(other_reduction(ReduceScatter, ReduceOp::Min));
  all.push_back(other_reduction(Reduce, ReduceOp::Max));
  for (const Collective kind : {ReduceScatter, AllGather, Gather, Scatter}) all.push_back(other_parts(kind));
  all.push_back({"even_and_uneven_parts",
                 [](const Rank& rank) {
                   const std::vector<std::size_t> counts(static_cast<std::size_t>(rank.comm.world_size()), rank.count);
                   Operation operation = rank.operation(AllGather);
                   if (rank.odd) operation.counts = counts, operation.count = 0;
                   rank.comm.run(operation);
                 },
                 "in uneven parts"});
  all.push_back({"even_and_uneven_all_to_all",
                 [](const Rank& rank) {
                   const std::vector<std::size_t> counts(static_cast<std::size_t>(rank.comm.world_size()), rank.count);
                   Operation operation = rank.operation(AllToAll);
                   if (rank.odd) operation.counts = operation.receive_counts = counts, operation.count = 0;
                   rank.comm.run(operation);
                 },
                 "uneven parts"});
  all.push_back(call(
      "in_place", AllToAll, [](Operation& o, const Rank& rank) { o.out = rank.memory.in(); }, "in place"));
  all.push_back({"algorithm",
                 [](const Rank& rank) {
                   Operation operation = rank.operation(AllReduce);
                   const bool shared = rank.engine == ThreadEngine::SharedMemory;
                   if (rank.odd) operation.algorithm = shared ? Algorithm::Slices : Algorithm::Direct;
                   rank.comm.run(operation);
                 },
                 "sum, "});
  all.push_back(call(
      "label", AllReduce, [](Operation& o, const Rank&) { o.label = "mine"; }, "all_reduce #1 'mine'"));
  all.push_back({"order_of_buckets", [](const Rank& rank) { labelled(rank, "bucket 0", "bucket 1"); }, "'bucket 1'"});
  all.push_back({"started",
                 [](const Rank& rank) {
                   const Operation operation = rank.operation(AllReduce);
                   if (rank.odd) rank.comm.start(operation).wait();
                   else rank.comm.run(operation);
                 },
                 "started"});
  all.push_back({"order_of_operations",
                 [](const Rank& rank) {
                   const Collective order[] = {AllReduce, AllGather};
                   for (int i = 0; i < 2; ++i) rank.comm.run(rank.operation(order[rank.odd ? 1 - i : i]));
                 },
                 "all_gather #1"});
  all.push_back({"skipped",
                 [](const Rank& rank) {
                   rank.comm.barrier();
                   if (!rank.odd) rank.comm.run(rank.operation(AllReduce));
                   rank.comm.barrier();
                 },
                 "barrier #2"});
  all.push_back({"one_too_many",
                 [](const Rank& rank) {
                   rank.comm.barrier();
                   if (rank.odd) rank.comm.run(rank.operation(AllReduce));
                   rank.comm.barrier();
                 },
                 "all_reduce #2"});
  all.push_back({"split_and_barrier",
                 [](const Rank& rank) {
                   if (rank.odd) (void)rank.comm.duplicate();
                   else rank.comm.barrier();
                 },
                 "all_gather #1"});
  all.push_back({"color_of_split_and_text",
                 [](const Rank& rank) {
                   if (rank.odd) (void)rank.comm.gather(std::string("text"));
                   else (void)rank.comm.split(0);
                 },
                 "(int64 x 1"});
  all.push_back(other_plan("plan_of_more_buckets", {{"a", 100, Dtype::Float32}, {"b", 400, Dtype::Float32}}, 1024));
  all.push_back(other_plan("plan_of_the_same_bytes", {{"a", 400, Dtype::Float32}, {"b", 100, Dtype::Float32}}, 65536));
  all.push_back(other_plan("plan_of_another_type", {{"a", 100, Dtype::Int32}, {"b", 400, Dtype::Int32}}, 65536));
  all.push_back({"step",
                 [](const Rank& rank) {
                   const std::vector<ParameterInfo> parameters{{"a", 100, Dtype::Float32}};
                   auto reducer = std::make_unique<Reducer>(rank.comm, parameters, ReducerOptions{});
                   step(*reducer, 1);
                   if (rank.odd) reducer = std::make_unique<Reducer>(rank.comm, parameters, ReducerOptions{});
                   step(*reducer, 1);
                 },
                 "'step 0 "});
  return all;
}

std::string with_count(std::string described, std::size_t count) {
  for (const auto& [mark, value] :
       {std::pair{std::string("%N-1"), count - 1}, {std::string("%N+1000"), count + 1000}}) {
    if (const auto at = described.find(mark); at != std::string::npos) {
      described.replace(at, mark.size(), std::to_string(value));
    }
  }
  return described;
}

class Mismatches : public testing::TestWithParam<std::tuple<ThreadEngine, int>> {};

void expect_mismatch(const Kind& kind, ThreadEngine engine, int world, std::size_t count, bool registered) {
  SCOPED_TRACE(kind.name + ", " + std::to_string(count) + " elements, " + (registered ? "registered" : "private"));
  const int odd = world - 1;
  std::vector<std::string> heard(static_cast<std::size_t>(world));
  const auto body = [&](const Comm& comm) {
    const test::RankMemory memory(comm, count, registered);
    try {
      kind.call({comm, memory, count, comm.rank() == odd, engine});
      ADD_FAILURE() << "rank " << comm.rank() << " noticed nothing";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Mismatch) << error.what();
      heard[static_cast<std::size_t>(comm.rank())] = error.message();
    }
    EXPECT_TRUE(memory.untouched()) << "rank " << comm.rank();
    EXPECT_THROW(comm.barrier(), Error) << "a dead communicator lives on";
  };
  test::on_ranks(world, engine, body);
  for (const std::string& message : heard) {
    EXPECT_EQ(message, heard[0]) << "the same cause on all ranks";
    EXPECT_NE(message.find("rank 0 calls "), std::string::npos) << message;
    const auto theirs = message.find("but rank " + std::to_string(odd) + " calls ");
    ASSERT_NE(theirs, std::string::npos) << message;
    EXPECT_NE(message.find(with_count(kind.described, count), theirs), std::string::npos) << message;
    EXPECT_NE(message.find("No data was combined"), std::string::npos) << message;
  }
}

TEST_P(Mismatches, OfEveryKindNameBothSidesOnAllRanksAndTouchNothing) {
  const auto [engine, world] = GetParam();
  const auto all = kinds();
  std::set<std::string> names;
  for (const Kind& kind : all) names.insert(kind.name);
  EXPECT_EQ(names.size(), all.size());
  EXPECT_GE(names.size(), 50u);
  for (const Kind& kind : all) {
    for (const std::size_t count : {std::size_t{6}, std::size_t{6000}, std::size_t{60'000}}) {
      // Larger than the staging buffer of the memory that has to be copied.
      const bool registered = count != 60'000 && world % 2 == 0;
      if (!HasFailure()) expect_mismatch(kind, engine, world, count, registered);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Mismatches,
                         testing::Combine(testing::Values(ThreadEngine::SharedMemory, ThreadEngine::Tcp),
                                          testing::Range(test::kSanitized ? 3 : 2, test::kSanitized ? 4 : 5)),
                         [](const auto& world) {
                           return test::engine_label(std::get<0>(world.param)) +
                                  std::to_string(std::get<1>(world.param));
                         });

}  // namespace
}  // namespace paceline
