#include "paceline/comm/message_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "paceline/base/kernels.h"
#include "paceline/comm/slices.h"

namespace paceline {

Nanoseconds MessageCollectives::carry_out(const Operation& operation, std::uint64_t number, Deadline deadline) {
  agree(operation, number, deadline);
  const Nanoseconds last_arrival = now();
  switch (operation.kind) {
    case Collective::AllReduce: all_reduce(operation, deadline); break;
    case Collective::ReduceScatter: reduce_scatter(operation, deadline); break;
    case Collective::AllGather: all_gather(operation, deadline); break;
    case Collective::Broadcast: broadcast(operation, deadline); break;
    case Collective::Barrier: break;
    default: throw Error(ErrorCode::InvalidArgument, "not yet over messages");
  }
  return last_arrival;
}

void MessageCollectives::agree(const Operation& operation, std::uint64_t number, Deadline deadline) {
  const int rank = transport_.rank();
  headers_.resize(static_cast<std::size_t>(transport_.world_size()));
  sign(operation, number, headers_[rank].signature);
  headers_[rank].weight = operation.weight;
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (int peer = 0; peer < transport_.world_size(); ++peer) {
    if (peer == rank) continue;
    outgoing.push_back({peer, std::as_bytes(std::span(&headers_[rank], 1))});
    incoming.push_back({peer, std::as_writable_bytes(std::span(&headers_[peer], 1))});
  }
  transport_.exchange(outgoing, incoming, deadline);
  for (int peer = 1; peer < transport_.world_size(); ++peer) {
    if (std::memcmp(&headers_[0].signature, &headers_[peer].signature, sizeof(Signature)) != 0) {
      throw mismatch(rank, headers_[0].signature, peer, headers_[peer].signature);
    }
  }
}

void MessageCollectives::all_reduce(const Operation& operation, Deadline deadline) {
  const int rank = transport_.rank();
  const auto slice_bytes = [&](int of) {
    const Slice slice = slice_of(operation.count, operation.dtype, of, transport_.world_size());
    return std::span(operation.out + slice.begin * size_of(operation.dtype), slice.count * size_of(operation.dtype));
  };
  if (operation.in != operation.out)
    std::memcpy(operation.out, operation.in, operation.count * size_of(operation.dtype));
  const std::span<std::byte> own = slice_bytes(rank);
  std::vector<Outgoing> scatter, gather;
  std::vector<Incoming> results;
  for (int peer = 0; peer < transport_.world_size(); ++peer) {
    if (peer == rank) continue;
    scatter.push_back({peer, slice_bytes(peer)});
    gather.push_back({peer, own});
    results.push_back({peer, slice_bytes(peer)});
  }
  reduce_part(operation, scatter, own.data(), own.data(), own.size() / size_of(operation.dtype), deadline);
  transport_.exchange(gather, results, deadline);
}

void MessageCollectives::reduce_scatter(const Operation& operation, Deadline deadline) {
  const int rank = transport_.rank();
  const std::size_t bytes = operation.count * size_of(operation.dtype);
  std::vector<Outgoing> scatter;
  for (int peer = 0; peer < transport_.world_size(); ++peer) {
    if (peer != rank) scatter.push_back({peer, {operation.in + bytes * static_cast<std::size_t>(peer), bytes}});
  }
  reduce_part(operation, scatter, operation.in + bytes * static_cast<std::size_t>(rank), operation.out, operation.count,
              deadline);
}

void MessageCollectives::reduce_part(const Operation& operation, std::span<const Outgoing> outgoing,
                                     const std::byte* part, std::byte* to, std::size_t count, Deadline deadline) {
  const int rank = transport_.rank();
  const auto world = static_cast<std::size_t>(transport_.world_size());
  const std::size_t bytes = count * size_of(operation.dtype);
  std::vector<std::byte> parts(bytes * world);
  std::vector<Incoming> incoming;
  std::vector<const std::byte*> sources;
  std::vector<double> weights;
  for (std::size_t peer = 0; peer < world; ++peer) {
    std::byte* scratch = parts.data() + bytes * peer;
    const bool own = static_cast<int>(peer) == rank;
    if (!own) incoming.push_back({static_cast<int>(peer), {scratch, bytes}});
    sources.push_back(own ? part : scratch);
    if (operation.reduce == ReduceOp::Mean) weights.push_back(headers_[peer].weight);
  }
  transport_.exchange(outgoing, incoming, deadline);
  std::byte* const destination[] = {to};
  reduce(operation.reduce, operation.dtype, sources, destination, count, weights);
}

void MessageCollectives::all_gather(const Operation& operation, Deadline deadline) {
  const int rank = transport_.rank();
  const std::size_t bytes = operation.count * size_of(operation.dtype);
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (int peer = 0; peer < transport_.world_size(); ++peer) {
    std::byte* to = operation.out + bytes * static_cast<std::size_t>(peer);
    if (peer == rank) {
      if (bytes > 0 && to != operation.in) std::memcpy(to, operation.in, bytes);
      continue;
    }
    outgoing.push_back({peer, {operation.in, bytes}});
    incoming.push_back({peer, {to, bytes}});
  }
  transport_.exchange(outgoing, incoming, deadline);
}

void MessageCollectives::broadcast(const Operation& operation, Deadline deadline) {
  const std::span<std::byte> data(operation.out, operation.count * size_of(operation.dtype));
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  if (transport_.rank() != operation.root) incoming.push_back({operation.root, data});
  for (int peer = 0; incoming.empty() && peer < transport_.world_size(); ++peer) {
    if (peer != operation.root) outgoing.push_back({peer, data});
  }
  transport_.exchange(outgoing, incoming, deadline);
}

Buffer allocate_on_heap(std::size_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  auto* data = static_cast<std::byte*>(::operator new(std::max<std::size_t>(bytes, 1), kAlignment));
  std::fill_n(data, bytes, std::byte{0});
  return {data, bytes, nullptr,
          [](void*, std::byte* memory, std::size_t) noexcept { ::operator delete(memory, kAlignment); }};
}

}  // namespace paceline
