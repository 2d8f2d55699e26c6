#include "paceline/tools/bench_operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "paceline/base/error.h"

namespace paceline::tools {

BenchOperands::BenchOperands(const Comm& comm, const BenchOptions& options, const std::vector<BenchRow>& rows)
    : options_(options),
      seat_{comm.rank(), comm.world_size(), options.root},
      pattern_(options.dtype, options.reduce, comm.world_size()) {
  std::size_t largest = 0;
  for (const BenchRow& row : rows) largest = std::max(largest, row.bytes);
  const std::size_t bytes = largest + 64 * static_cast<std::size_t>(comm.world_size());
  first_ = allocate(comm, options.buffers, bytes);
  second_ = allocate(comm, options.buffers, bytes);
}

BenchOperands::Memory BenchOperands::allocate(const Comm& comm, BenchBuffers kind, std::size_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  Memory memory;
  if (kind == BenchBuffers::Registered) {
    const auto buffer = std::make_shared<Buffer>(comm.allocate(bytes));
    memory = Memory(buffer, buffer->data());
  } else {
    auto* data = static_cast<std::byte*>(std::aligned_alloc(64, bytes));
    if (data == nullptr) throw system_error(fmt::format("cannot allocate {} bytes", bytes), ENOMEM);
    memory = Memory(data, std::free);
  }
  std::memset(memory.get(), 0, bytes);  // so that no page is touched for the first time while it is timed
  return memory;
}

BenchOperands::Own BenchOperands::own(const BenchRow& row) const {
  const CollectiveTraits& traits = *options_.collective;
  const std::size_t call_bytes = row.count * size_of(options_.dtype);
  const std::size_t part_begin = call_bytes * static_cast<std::size_t>(seat_.rank);
  const bool in_place = row.place == Place::InPlace;
  const auto lie = [&](const Memory& memory, Extent extent, bool on_root) -> std::span<std::byte> {
    if (on_root && seat_.rank != seat_.root) return {};
    if (extent == Extent::Total) return {memory.get(), row.bytes};
    return {memory.get() + (in_place ? part_begin : 0), call_bytes};
  };
  return {lie(first_, traits.in, traits.in_on_root), lie(in_place ? first_ : second_, traits.out, traits.out_on_root)};
}

Operation BenchOperands::operation(const BenchRow& row) const {
  const Own operands = own(row);
  return {.kind = options_.collective->kind,
          .dtype = options_.dtype,
          .reduce = options_.reduce,
          .algorithm = options_.algorithm,
          .root = options_.root,
          .count = row.count,
          .in = operands.in.data(),
          .out = operands.out.data()};
}

void BenchOperands::spoil_output(const BenchRow& row) const {
  const std::span<std::byte> out = own(row).out;
  if (!out.empty()) std::memset(out.data(), 0xAB, out.size());
}

void BenchOperands::write_input(const BenchRow& row) const {
  const std::span<std::byte> in = own(row).in;
  if (!in.empty()) pattern_.write(in, seat_.rank, 0);
}

std::size_t BenchOperands::count_wrong(const BenchRow& row) const {
  const std::span<const std::byte> out = own(row).out;
  return out.empty() ? 0 : tools::count_wrong(*options_.collective, row, pattern_, seat_, out);
}

}  // namespace paceline::tools
