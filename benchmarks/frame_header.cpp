// What a frame's header costs a rank: making one and reading one, without a payload. An all-reduce of 64 KiB between
// two ranks over TCP has three each way: a call, and two segments of 32 KiB.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <vector>

#include "paceline/base/clock.h"
#include "paceline/comm/tcp/frame.h"

int main() {
  using namespace paceline;
  constexpr int kFrames = 200'000, kRounds = 21;
  std::vector<double> each;
  for (int round = 0; round < kRounds; ++round) {
    FrameStream out, in;
    FrameHeader heard{};
    Call call{};
    const Nanoseconds began = now();
    for (int i = 0; i < kFrames; ++i) {
      call.signature.number = static_cast<std::uint64_t>(i);
      const FrameHeader header = make_frame(out, FrameKind::Segment, call, {});
      const auto bytes = std::as_bytes(std::span(&header, 1)).first<sizeof(FrameHeader)>();
      if (const auto wrong = read_frame(in, bytes, 0, heard)) {
        fmt::print(stderr, "{}\n", *wrong);
        return 1;
      }
    }
    each.push_back(static_cast<double>((now() - began).count()) / kFrames);
  }
  std::nth_element(each.begin(), each.begin() + kRounds / 2, each.end());
  fmt::print("a header made and read: {:.0f} ns (median of {} rounds)\n", each[kRounds / 2], kRounds);
}
