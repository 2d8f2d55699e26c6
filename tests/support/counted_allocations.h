// Replaces the program's operator new by one that counts. For the one source of a test.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace paceline::test {

/// How often this thread has asked for memory.
inline thread_local std::size_t allocations = 0;

}  // namespace paceline::test

// Inlined apart from each other, g++ 12 takes them for no pair.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++paceline::test::allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
