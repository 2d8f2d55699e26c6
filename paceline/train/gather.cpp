#include "paceline/train/gather.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <span>
#include <string>

#include "paceline/base/bytes.h"
#include "paceline/train/plain_tensor.h"

namespace paceline {
namespace {

std::string shape_but_first(const torch::Tensor& tensor) {
  return fmt::format("{} [*, {}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes().slice(1), ", "));
}

}  // namespace

std::vector<torch::Tensor> gather(const Comm& comm, const torch::Tensor& tensor) {
  if (tensor.dim() < 1 || tensor.layout() != torch::kStrided) {
    throw Error(ErrorCode::InvalidArgument, "gather: a dense tensor of at least one dimension is needed", comm.rank());
  }
  const torch::NoGradGuard no_grad;
  const torch::Tensor own = plain(tensor).contiguous();
  const auto all = comm.gather(fmt::format("{}|{}", own.size(0), shape_but_first(own)));
  std::int64_t row_bytes = own.element_size();
  for (const std::int64_t extent : own.sizes().slice(1)) row_bytes *= extent;
  std::vector<torch::Tensor> result;
  std::vector<std::size_t> bytes;
  for (std::size_t peer = 0; peer < all.size(); ++peer) {
    const auto bar = all[peer].find('|');
    if (all[peer].substr(bar) != all[0].substr(all[0].find('|'))) {
      comm.fail({ErrorCode::Mismatch,
                 fmt::format("gather: rank 0 has {}, but rank {} has {}", all[0].substr(all[0].find('|') + 1), peer,
                             all[peer].substr(bar + 1)),
                 comm.rank(), static_cast<int>(peer)});
    }
    std::vector<std::int64_t> shape = own.sizes().vec();
    shape[0] = std::stoll(all[peer].substr(0, bar));
    result.push_back(torch::empty(shape, own.scalar_type()));
    bytes.push_back(static_cast<std::size_t>(shape[0] * row_bytes));
  }
  std::vector<std::byte> received(std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}));
  comm.all_gather(Dtype::UInt8, {static_cast<const std::byte*>(own.data_ptr()), own.nbytes()}, received, bytes);
  const std::byte* at = received.data();
  for (std::size_t peer = 0; peer < result.size(); ++peer) {
    copy_bytes(static_cast<std::byte*>(result[peer].data_ptr()), at, bytes[peer]);
    at += bytes[peer];
  }
  return result;
}

}  // namespace paceline
