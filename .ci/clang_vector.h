// Included first where clang 14 lints what includes libtorch 1.13. In C++20 clang instantiates std::vector's constexpr
// members as soon as it meets a use, and libtorch's headers use vectors of a type that they complete later; g++ waits.
// Here the members of std::vector, and of nothing else, are not constexpr. libstdc++ declares one helper of theirs
// before.
#include <string>
#undef _GLIBCXX20_CONSTEXPR
#define _GLIBCXX20_CONSTEXPR
#define __fill_a1 __fill_a1_of_bits
#include <vector>
#undef __fill_a1
#undef _GLIBCXX20_CONSTEXPR
#define _GLIBCXX20_CONSTEXPR constexpr
