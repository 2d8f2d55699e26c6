#include "paceline/tools/bench/operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "paceline/base/error.h"

namespace paceline::tools {

BenchOperands::BenchOperands(const Comm& comm, const BenchOptions& options, const std::vector<BenchRow>& rows,
                             BenchBuffers kind)
    : options_(options),
      seat_{comm.rank(), comm.world_size(), options.root},
      pattern_(options.dtype, options.reduce, comm.world_size()) {
  std::size_t bytes = 64;
  for (const BenchRow& row : rows) bytes = std::max(bytes, row.bytes);
  first_ = allocate(comm, kind, bytes);
  second_ = allocate(comm, kind, bytes);
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

OperandSpans BenchOperands::own(const BenchRow& row) const {
  return operands_in(first(), second(), options_, row, seat_);
}

Operation BenchOperands::operation(const BenchRow& row) const {
  const OperandSpans operands = own(row);
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
