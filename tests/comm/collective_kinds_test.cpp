// Every kind of collective, with whatever an operation may vary, against the plain definition, on exact data. The
// operations of a schedule are the same on all ranks; where buffers lie, how a rank waits and how late it comes are
// not.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "paceline/comm/operation.h"
#include "tests/support/world.h"

namespace paceline {
namespace {

constexpr Dtype kTypes[] = {Dtype::Float32, Dtype::Float64, Dtype::Float16, Dtype::BFloat16,
                            Dtype::Int32,   Dtype::Int64,   Dtype::UInt8};

void put(Dtype dtype, std::byte* at, int value) {
  const auto store = [&](auto typed) { std::memcpy(at, &typed, sizeof typed); };
  switch (dtype) {
    case Dtype::Float32: return store(static_cast<float>(value));
    case Dtype::Float64: return store(static_cast<double>(value));
    case Dtype::Float16: return store(to_half(static_cast<float>(value)));
    case Dtype::BFloat16: return store(to_bfloat16(static_cast<float>(value)));
    case Dtype::Int32: return store(static_cast<std::int32_t>(value));
    case Dtype::Int64: return store(static_cast<std::int64_t>(value));
    case Dtype::UInt8: return store(static_cast<std::uint8_t>(value));
  }
}

/// What all ranks know of one call.
struct Call {
  Operation operation;              // without memory
  std::vector<std::size_t> counts;  // uneven parts; for all_to_all, of rank p to rank q at p * world + q
  bool in_place = false;            // for all_to_all, where ranks cannot differ
  bool started = false;             // rather than waited for at once
  std::uint64_t seed = 0;

  /// Element `i` of what a rank puts in. At most 3, so that sums over 64 ranks are exact in every type.
  int input(int rank, std::size_t i) const {
    return static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 5 + seed) % 4);
  }
  std::size_t part(int rank) const { return counts.empty() ? operation.count : counts[static_cast<std::size_t>(rank)]; }
  std::size_t begin(int rank) const {
    if (counts.empty()) return operation.count * static_cast<std::size_t>(rank);
    return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
  }
  std::size_t sent(int from, int to, int world) const {
    return counts.empty() ? operation.count : counts[static_cast<std::size_t>(from * world + to)];
  }

  int reduced(std::size_t i, int world) const {
    int result = input(0, i);
    for (int rank = 1; rank < world; ++rank) {
      const int next = input(rank, i);
      if (operation.reduce == ReduceOp::Sum) result += next;
      else result = operation.reduce == ReduceOp::Min ? std::min(result, next) : std::max(result, next);
    }
    return result;
  }

  /// What `rank` must hold afterwards; empty where it gets nothing.
  std::vector<int> expected(int rank, int world) const {
    std::vector<int> wanted;
    const auto append = [&](std::size_t from, std::size_t count, auto&& value) {
      for (std::size_t i = from; i < from + count; ++i) wanted.push_back(value(i));
    };
    const auto reduced_value = [&](std::size_t i) { return reduced(i, world); };
    const auto input_of = [&](int of) { return [this, of](std::size_t i) { return input(of, i); }; };
    const bool root = rank == operation.root;
    switch (operation.kind) {
      case Collective::Barrier: break;
      case Collective::Reduce:
        if (!root) break;
        [[fallthrough]];
      case Collective::AllReduce: append(0, operation.count, reduced_value); break;
      case Collective::Broadcast: append(0, operation.count, input_of(operation.root)); break;
      case Collective::ReduceScatter: append(begin(rank), part(rank), reduced_value); break;
      case Collective::Scatter: append(begin(rank), part(rank), input_of(operation.root)); break;
      case Collective::Gather:
        if (!root) break;
        [[fallthrough]];
      case Collective::AllGather:
        for (int from = 0; from < world; ++from) append(0, part(from), input_of(from));
        break;
      case Collective::AllToAll:
        for (int from = 0; from < world; ++from) {
          std::size_t first = 0;
          for (int to = 0; to < rank; ++to) first += sent(from, to, world);
          append(first, sent(from, rank, world), input_of(from));
        }
        break;
    }
    return wanted;
  }

  std::string describe() const {
    std::ostringstream text;
    text << to_string(operation.kind) << " of " << operation.count << ' ' << to_string(operation.dtype) << ", "
         << to_string(operation.reduce) << ", root " << operation.root << ", " << to_string(operation.algorithm)
         << (counts.empty() ? "" : ", uneven") << (in_place ? ", in place" : "") << (started ? ", started" : "");
    return text.str();
  }
};

Call random_call(std::mt19937_64& random, ThreadEngine engine, int world, std::size_t most) {
  const auto pick = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  Call call;
  Operation& operation = call.operation;
  operation.kind = static_cast<Collective>(pick(9));
  operation.dtype = kTypes[pick(std::size(kTypes))];
  constexpr ReduceOp kOps[] = {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max};
  operation.reduce = kOps[pick(3)];
  if (has_root(operation.kind)) operation.root = static_cast<int>(pick(static_cast<std::size_t>(world)));
  // Tiny, small and large ones, as often.
  const std::size_t scale[] = {4, 70, 1200, most};
  operation.count = pick(scale[pick(4)]);
  if (operation.kind == Collective::Barrier) operation.count = 0;
  if (has_parts(operation.kind)) {
    const auto n = static_cast<std::size_t>(world);
    operation.count /= n;
    if (pick(2) == 0) {
      call.counts.resize(operation.kind == Collective::AllToAll ? n * n : n);
      for (std::size_t& count : call.counts) count = pick(2 * operation.count + 2);
      operation.count = 0;
    }
  }
  call.in_place = operation.kind == Collective::AllToAll && call.counts.empty() && pick(2) == 0;
  const bool divisible = operation.kind == Collective::AllReduce || operation.kind == Collective::Reduce;
  const bool shared = engine == ThreadEngine::SharedMemory;
  // Which ones there are depends on whether all ranks share a host.
  const std::size_t algorithm = engine == ThreadEngine::Hosts ? 2 : pick(6);
  if (algorithm == 0) operation.algorithm = shared ? Algorithm::Slices : Algorithm::Direct;
  if (algorithm == 1 && shared && divisible) operation.algorithm = Algorithm::ChunkQueue;
  const bool rings = operation.kind == Collective::AllReduce && size_of(operation.dtype) != 2;
  if (algorithm == 1 && !shared && rings) operation.algorithm = Algorithm::Ring;
  call.started = pick(3) == 0;
  call.seed = pick(1000);
  return call;
}

/// One rank's memory for an operand.
class Operand {
 public:
  Operand(const Comm& comm, std::size_t bytes, bool inside) : bytes_(bytes) {
    if (inside) buffer_ = comm.allocate(bytes);
    else outside_.resize(bytes);
    data_ = inside ? buffer_.data() : outside_.data();
  }
  std::byte* data() const { return bytes_ == 0 ? nullptr : data_; }

 private:
  std::size_t bytes_;
  Buffer buffer_;
  std::vector<std::byte> outside_;
  std::byte* data_;
};

void run_and_check(const Comm& comm, const Call& call, std::mt19937_64& own) {
  const auto chance = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(own) == 0; };
  const int rank = comm.rank(), world = comm.world_size();
  Operation operation = call.operation;
  std::vector<std::size_t> sends, receives;
  if (!call.counts.empty() && operation.kind == Collective::AllToAll) {
    for (int peer = 0; peer < world; ++peer) {
      sends.push_back(call.sent(rank, peer, world));
      receives.push_back(call.sent(peer, rank, world));
    }
    operation.counts = sends;
    operation.receive_counts = receives;
  } else {
    operation.counts = call.counts;
  }
  const std::size_t size = size_of(operation.dtype);
  const std::size_t in_count = in_extent(operation, rank, world), out_count = out_extent(operation, rank, world);

  // In place where the kind has it, on some ranks.
  const bool broadcast = operation.kind == Collective::Broadcast;
  bool in_place = broadcast || call.in_place || (operation.kind != Collective::AllToAll && chance(2));
  in_place &= in_count > 0 && out_count > 0;
  const Operand in(comm, std::max(in_count, in_place ? out_count : 0) * size, chance(2));
  const Operand out(comm, in_place ? 0 : out_count * size, chance(2));
  operation.in = in.data();
  operation.out = in_place ? in.data() : out.data();
  if (broadcast && in_count == 0) operation.in = operation.out;
  if (in_place && has_parts(operation.kind) && operation.kind != Collective::AllToAll) {
    const bool gathers = operation.kind == Collective::AllGather || operation.kind == Collective::Gather;
    if (gathers) operation.in = in.data() + out_part_begin(operation, rank) * size;
    else operation.out = in.data() + in_part_begin(operation, rank) * size;
  }
  for (std::size_t i = 0; i < in_count; ++i) {
    put(operation.dtype, const_cast<std::byte*>(operation.in) + i * size, call.input(rank, i));
  }

  if (chance(4)) std::this_thread::yield();
  if (call.started) {
    Comm::Work work = comm.start(operation);
    if (chance(2)) work.wait();
    else
      while (!work.test()) std::this_thread::yield();
  } else {
    comm.run(operation);
  }

  const std::vector<int> wanted = call.expected(rank, world);
  std::vector<std::byte> bytes(wanted.size() * size);
  for (std::size_t i = 0; i < wanted.size(); ++i) put(operation.dtype, bytes.data() + i * size, wanted[i]);
  ASSERT_EQ(wanted.size(), out_count);
  ASSERT_TRUE(bytes.empty() || std::memcmp(operation.out, bytes.data(), bytes.size()) == 0)
      << call.describe() << " on rank " << rank << " of " << world << (in_place ? ", in place" : "");
  // What a rank put in is still there, unless it asked for the result in its place.
  for (std::size_t i = 0; !in_place && i < in_count; ++i) {
    std::byte element[8];
    put(operation.dtype, element, call.input(rank, i));
    ASSERT_EQ(std::memcmp(operation.in + i * size, element, size), 0) << call.describe() << ": input changed at " << i;
  }
}

void run_schedule(int world, ThreadEngine engine, int calls, std::size_t most) {
  const std::uint64_t seed = test::seed();
  SCOPED_TRACE("PACELINE_TEST_SEED=" + std::to_string(seed));
  test::on_ranks(world, engine, [&](const Comm& comm) {
    std::mt19937_64 common(seed), own(seed + 1 + static_cast<std::uint64_t>(comm.rank()));
    for (int i = 0; i < calls && !testing::Test::HasFatalFailure(); ++i) {
      run_and_check(comm, random_call(common, engine, world, most), own);
    }
  });
}

class CollectiveKinds : public testing::TestWithParam<std::tuple<ThreadEngine, int>> {};

TEST_P(CollectiveKinds, AreExactInRandomSchedules) {
  const auto [engine, world] = GetParam();
  run_schedule(world, engine, test::repeats(600), 40'000);
}

INSTANTIATE_TEST_SUITE_P(Worlds, CollectiveKinds,
                         testing::Combine(testing::Values(ThreadEngine::SharedMemory, ThreadEngine::Messages,
                                                          ThreadEngine::Tcp, ThreadEngine::Hosts),
                                          testing::ValuesIn(test::worlds())),
                         [](const auto& world) {
                           return test::engine_label(std::get<0>(world.param)) +
                                  std::to_string(std::get<1>(world.param));
                         });

TEST(CollectiveKinds, AreExactWithManyMoreRanksThanProcessors) {
  run_schedule(16, ThreadEngine::SharedMemory, test::repeats(60), 40'000);
  run_schedule(64, ThreadEngine::SharedMemory, 10, 40'000);
}

// Several pieces and chunks, not whole cache lines.
TEST(CollectiveKinds, AreExactForLargeOperands) {
  for (const auto engine :
       {ThreadEngine::SharedMemory, ThreadEngine::Messages, ThreadEngine::Tcp, ThreadEngine::Hosts}) {
    run_schedule(3, engine, test::repeats(20), 1'500'007);
  }
}

TEST(CollectiveKinds, CopiesOfOutsideMemoryAreCounted) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    const Buffer inside = comm.allocate(40'000);
    std::span data(reinterpret_cast<float*>(inside.data()), 10'000);
    comm.all_reduce(data);
    EXPECT_EQ(comm.bytes_copied(), 0u);
    std::vector<float> outside(10'000);
    comm.all_reduce<float>(outside);
    EXPECT_EQ(comm.bytes_copied(), 2 * 40'000u) << "in and out";
  });
}

TEST(CollectiveKinds, RefuseWhatTheyCannotDo) {
  test::on_ranks(2, ThreadEngine::SharedMemory, [](const Comm& comm) {
    std::vector<float> four(4), six(6);
    const std::span<float> data(six);
    const std::size_t even[] = {3, 3}, one[] = {6};
    const auto refused = [&](const char* says, auto&& call) {
      try {
        call();
        ADD_FAILURE() << "accepted: " << says;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
        EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
      }
    };
    const auto no_type = static_cast<Dtype>(77);
    const auto in = std::as_bytes(data);
    const auto out = std::as_writable_bytes(data);
    refused("op is 77", [&] { comm.all_reduce(data, static_cast<ReduceOp>(77)); });
    refused("dtype is 77", [&] { comm.all_reduce(no_type, in, out, ReduceOp::Sum); });
    refused("dtype is 77", [&] { comm.run({.kind = Collective::AllGather, .dtype = no_type}); });
    refused("must be equal", [&] { comm.all_reduce<float>(four, data); });
    refused("no rank 2", [&] { comm.reduce<float>(six, data, 2); });
    refused("must have 32", [&] { comm.all_gather<float>(four, data); });
    refused("one number for each", [&] { comm.scatter<float>(six, data.first(3), 0, one); });
    refused("in-place", [&] { comm.all_reduce<float>(data.first(4), data.subspan(2)); });
    refused("in-place", [&] { comm.all_to_all<float>(data, data, even, even); });
    Operation operation{.kind = Collective::AllGather, .dtype = Dtype::Float32, .algorithm = Algorithm::ChunkQueue};
    refused("chunk_queue", [&] { comm.run(operation); });
    operation.algorithm = Algorithm::Ring;
    refused("shared memory", [&] { comm.run(operation); });
    std::vector<float> many(257);
    auto* bytes = reinterpret_cast<std::byte*>(many.data());
    operation = {.kind = Collective::AllReduce,
                 .dtype = Dtype::Float32,
                 .algorithm = Algorithm::OneShot,
                 .count = many.size(),
                 .in = bytes,
                 .out = bytes};
    refused("1024 bytes", [&] { comm.run(operation); });
    EXPECT_EQ(comm.sum(1), 2) << "it lives on";
  });
}

}  // namespace
}  // namespace paceline
