// What ranks that meet over TCP leave for each other in the store.
#include "fuzz.h"
#include "paceline/comm/tcp/join_terms.h"
#include "paceline/net/secret.h"

using namespace paceline;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto terms = TcpTerms::from_text(text)) {
    FUZZ_CHECK(TcpTerms::is_segment(terms->segment_bytes) && TcpTerms::is_all_reduce(terms->all_reduce));
    FUZZ_CHECK(terms->secret.empty() || Secret::from_hex(terms->secret).hex() == terms->secret);
    const auto again = TcpTerms::from_text(terms->text());
    FUZZ_CHECK(again && again->generation == terms->generation && again->segment_bytes == terms->segment_bytes);
    FUZZ_CHECK(again->all_reduce == terms->all_reduce && again->secret == terms->secret);
  }
  if (const auto at = Whereabouts::from_text(text)) {
    FUZZ_CHECK(at->pid > 0 && !at->host.empty() && !at->addresses.empty());
    const auto again = Whereabouts::from_text(at->text());
    FUZZ_CHECK(again && again->host == at->host && again->pid == at->pid);
    FUZZ_CHECK(again->addresses.size() == at->addresses.size());
    for (const SocketAddress& address : at->addresses) FUZZ_CHECK(address.port() != 0);
  }
  return 0;
}
