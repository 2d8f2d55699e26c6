#include "paceline/tools/bench/plan.h"

#include <fmt/format.h>

#include "paceline/base/error.h"

namespace paceline::tools {
namespace {

void check_options(const BenchOptions& options, int world_size);
void check_size(const char* option, std::size_t bytes, std::size_t unit, const std::string& what);

}  // namespace

std::vector<BenchRow> plan_rows(const BenchOptions& options, int world_size) {
  check_options(options, world_size);
  const CollectiveTraits& traits = *options.collective;
  if (traits.kind == Collective::Barrier) return {{.place = Place::InPlace}};

  const std::size_t unit = size_unit(traits, options.dtype, world_size);
  check_size("-b", options.sizes.first, size_of(options.dtype), to_string(options.dtype));
  check_size("-e", options.sizes.last, size_of(options.dtype), to_string(options.dtype));
  check_size("-b", options.sizes.first, unit,
             fmt::format("one {} for each of {} ranks", to_string(options.dtype), world_size));
  std::vector<BenchRow> rows;
  for (const std::size_t bytes : sizes_in(options.sizes, unit)) {
    const std::size_t count = bytes / unit;
    if (options.out_of_place && traits.out_of_place) rows.push_back({bytes, count, Place::OutOfPlace});
    if (options.in_place) rows.push_back({bytes, count, Place::InPlace});
  }
  return rows;
}

namespace {

void check_options(const BenchOptions& options, int world_size) {
  const auto refuse = [](const std::string& message) { return Error(ErrorCode::InvalidArgument, message); };
  const CollectiveTraits& traits = *options.collective;
  if (options.root < 0 || options.root >= world_size) {
    throw refuse(
        fmt::format("--root {} is no rank of {}: take one from 0 to {}", options.root, world_size, world_size - 1));
  }
  if (options.root != 0 && !traits.rooted) throw refuse(fmt::format("{} has no root; leave out --root", traits.name));
  if (options.reduce != ReduceOp::Sum && !traits.reduces) {
    throw refuse(fmt::format("{} does not reduce; leave out --op", traits.name));
  }
  if (!options.in_place && !traits.out_of_place) {
    throw refuse(fmt::format("{} works in place only; leave out --out-of-place", traits.name));
  }
}

void check_size(const char* option, std::size_t bytes, std::size_t unit, const std::string& what) {
  if (bytes % unit == 0) return;
  const std::size_t below = bytes / unit * unit;
  const std::string fits = below == 0 ? fmt::format("{}", unit) : fmt::format("{} or {}", below, below + unit);
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} {} is no multiple of {} bytes ({}); take {}", option, bytes, unit, what, fits));
}

}  // namespace
}  // namespace paceline::tools
