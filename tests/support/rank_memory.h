#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "paceline/comm/comm.h"

namespace paceline::test {

/// What one rank has: two operands, of N parts of `count` elements of the largest type each, full of its own bits.
class RankMemory {
 public:
  RankMemory(const Comm& comm, std::size_t count, bool registered) {
    const std::size_t bytes = count * static_cast<std::size_t>(comm.world_size()) * 8;
    for (auto* operand : {&in_, &out_}) {
      if (registered) operand->buffer = comm.allocate(bytes);
      else operand->outside.resize(bytes);
      operand->data = registered ? operand->buffer.data() : operand->outside.data();
      for (std::size_t i = 0; i < bytes; ++i) {
        operand->data[i] = static_cast<std::byte>(i * 31 + static_cast<std::size_t>(comm.rank()) * 7 + 1);
      }
      operand->before.assign(operand->data, operand->data + bytes);
    }
  }
  std::byte* in() const { return in_.data; }
  std::byte* out() const { return out_.data; }
  bool untouched() const {
    const auto same = [](const Operand& o) { return std::memcmp(o.data, o.before.data(), o.before.size()) == 0; };
    return same(in_) && same(out_);
  }

 private:
  struct Operand {
    Buffer buffer;
    std::vector<std::byte> outside, before;
    std::byte* data = nullptr;
  };
  Operand in_, out_;
};

}  // namespace paceline::test
