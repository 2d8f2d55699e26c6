// report.json, and what ranks tell each other about themselves. What is accepted can be written and read again.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>

#include "fuzz.h"
#include "paceline/observe/findings.h"
#include "paceline/observe/rank_summary.h"
#include "paceline/observe/report.h"
#include "paceline/observe/summary.h"

using namespace paceline;

namespace {

void read_as_summary(std::string_view text) {
  fuzz::accepts(ErrorCode::Corrupt, [&] {
    const RankSummary summary = rank_summary_from_json_text(text);
    const std::string written = to_json_text(summary);
    FUZZ_CHECK(to_json_text(rank_summary_from_json_text(written)) == written);
  });
}

void read_as_report(std::string_view text) {
  static const int file = ::memfd_create("report", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  FUZZ_CHECK(::ftruncate(file, 0) == 0);
  FUZZ_CHECK(::pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  fuzz::accepts(ErrorCode::Corrupt, [&] {
    const Report report = read_report(path);
    FUZZ_CHECK(!report.ranks.empty());
    FUZZ_CHECK(!terminal_summary(report).empty());
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read_as_summary(text);
  read_as_report(text);
  return 0;
}
