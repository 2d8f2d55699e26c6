#include "paceline/tools/bench/names.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "paceline/base/error.h"

namespace paceline::tools {
namespace {

template <class T, std::size_t N>
using Words = std::array<std::pair<std::string_view, T>, N>;

constexpr Words<Dtype, 10> kTypes{{{"float", Dtype::Float32},
                                   {"double", Dtype::Float64},
                                   {"half", Dtype::Float16},
                                   {"bfloat16", Dtype::BFloat16},
                                   {"int32", Dtype::Int32},
                                   {"int64", Dtype::Int64},
                                   {"uint8", Dtype::UInt8},
                                   {"float32", Dtype::Float32},
                                   {"float64", Dtype::Float64},
                                   {"float16", Dtype::Float16}}};
constexpr Words<ReduceOp, 4> kReductions{
    {{"sum", ReduceOp::Sum}, {"mean", ReduceOp::Mean}, {"min", ReduceOp::Min}, {"max", ReduceOp::Max}}};
constexpr Words<BenchTransport, 3> kTransports{
    {{"auto", BenchTransport::Auto}, {"shm", BenchTransport::SharedMemory}, {"tcp", BenchTransport::Tcp}}};
constexpr Words<Algorithm, 7> kAlgorithms{{{"auto", Algorithm::Auto},
                                           {"one_shot", Algorithm::OneShot},
                                           {"slices", Algorithm::Slices},
                                           {"chunk_queue", Algorithm::ChunkQueue},
                                           {"direct", Algorithm::Direct},
                                           {"ring", Algorithm::Ring},
                                           {"hierarchical", Algorithm::Hierarchical}}};
constexpr Words<BenchBuffers, 2> kBuffers{
    {{"registered", BenchBuffers::Registered}, {"private", BenchBuffers::Private}}};

template <class T, std::size_t N>
T look_up(const Words<T, N>& words, std::string_view option, std::string_view word) {
  std::string names;
  for (const auto& [name, value] : words) {
    if (name == word) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  throw Error(ErrorCode::InvalidArgument, fmt::format("{} takes one of {}, not \"{}\"", option, names, word));
}

template <class T, std::size_t N>
const char* name_in(const Words<T, N>& words, T value) {
  for (const auto& [name, its_value] : words) {
    if (its_value == value) return name.data();
  }
  return "unknown";
}

}  // namespace

Dtype dtype_named(std::string_view word) { return look_up(kTypes, "--type", word); }
ReduceOp reduce_op_named(std::string_view word) { return look_up(kReductions, "--op", word); }
BenchTransport transport_named(std::string_view word) { return look_up(kTransports, "--transport", word); }
Algorithm algorithm_named(std::string_view word) { return look_up(kAlgorithms, "--algorithm", word); }
BenchBuffers buffers_named(std::string_view word) { return look_up(kBuffers, "--buffers", word); }

const char* to_string(BenchTransport transport) { return name_in(kTransports, transport); }
const char* to_string(BenchBuffers buffers) { return name_in(kBuffers, buffers); }
const char* to_string(Place place) { return place == Place::InPlace ? "in" : "out"; }

}  // namespace paceline::tools
