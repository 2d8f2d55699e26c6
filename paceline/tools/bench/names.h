#pragma once

#include <string_view>

#include "paceline/tools/bench/options.h"

namespace paceline::tools {

// What the options' words stand for. Each throws InvalidArgument, naming the words there are.

/// nccl-tests' names (float, double, half, uint8, ...) and the library's own (float32, ...).
Dtype dtype_named(std::string_view word);
ReduceOp reduce_op_named(std::string_view word);
BenchTransport transport_named(std::string_view word);
Algorithm algorithm_named(std::string_view word);
BenchBuffers buffers_named(std::string_view word);

const char* to_string(BenchTransport transport);
const char* to_string(BenchBuffers buffers);
const char* to_string(Place place);

}  // namespace paceline::tools
