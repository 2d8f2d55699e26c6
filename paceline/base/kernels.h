#pragma once

#include <cstddef>
#include <span>

#include "paceline/base/dtype.h"

namespace paceline {

/// How the values of all ranks become one.
///
/// Mean divides by the sum of the ranks' weights, once, in the final store; integers round toward zero. The weights may
/// be of any size: only how they compare counts. Where they are equal, the sum of all values must fit the type they are
/// summed in (float32 for 16 bits), so a mean of float32 values is infinite from 3.4e38 / N on. Min and Max keep a NaN.
enum class ReduceOp : std::uint8_t { Sum, Mean, Min, Max };

const char* to_string(ReduceOp op);

/// Reduces `count` elements from each of `sources` and stores the result to each of `destinations`, which may be the
/// sources themselves. The elements of a position are combined in the order of `sources`, in registers, so the result
/// does not depend on how a buffer is cut into calls (but for the payload of a sum of several NaNs). Float16 and
/// BFloat16 are summed in float32.
///
/// `weights` is empty, or has one factor per source: Mean gives sum(w x) / sum(w), and a source of weight 0 is not
/// read at all; Sum, Min and Max take no weights. With at least one source; destinations may be none.
/// Dispatches at run time to the widest vectors of this processor (Highway).
void reduce(ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources,
            std::span<std::byte* const> destinations, std::size_t count, std::span<const double> weights = {});

/// Writes floating-point values as another floating-point type: `to` has as many elements as `from`, elsewhere. Rounds
/// to nearest even; from Float64 to 16 bits over Float32. What does not fit becomes infinity, and a NaN stays one.
void convert(Dtype from_type, std::span<const std::byte> from, Dtype to_type, std::span<std::byte> to);

/// Multiplies the weights of a Mean by the same power of two, so that their sum is less than 1 and each that counts
/// beside the others is in the range of a float. The mean, bit for bit, is that of the weights before.
void scale_weights(std::span<double> weights);

/// True where a Mean of these weights is the plain one: they are equal, and not 0.
bool is_plain_mean(std::span<const double> weights);

/// One of several calls that make a floating-point Mean together, with the bits of reduce() over all sources at once:
/// sum(w x) / total, after scale_weights() of all weights. All calls but the last have the total 1; from the second on,
/// the first source is what the one before made, with the weight 1. Where is_plain_mean() of all weights, each weight
/// is 1 and the last total the number of sources; otherwise that is the sum of the weights. Sources of weight 0 are not
/// read; one at least must have another.
void reduce_part(Dtype dtype, std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                 std::size_t count, std::span<const double> weights, double total);

/// The instruction set that reduce() runs on here, e.g. "AVX3".
const char* kernel_target();

}  // namespace paceline
