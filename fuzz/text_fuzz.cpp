// What users write in options and variables: sizes, numbers, addresses, interface lists, secrets.
#include <CLI/CLI.hpp>

#include "fuzz.h"
#include "paceline/launch/option_numbers.h"
#include "paceline/net/host_port.h"
#include "paceline/net/port_range.h"
#include "paceline/net/secret.h"
#include "paceline/net/tcp_address.h"
#include "paceline/tools/bench/sizes.h"

using namespace paceline;

namespace {

void parse_sizes(const std::string& text) {
  std::size_t size = 0;
  if (!fuzz::accepts(ErrorCode::InvalidArgument, [&] { size = tools::parse_size("-b", text); })) return;
  FUZZ_CHECK(size <= std::size_t{1} << 40);
  FUZZ_CHECK(tools::parse_size("-b", tools::size_text(size)) == size);
}

void make_ranges(fuzz::Input& input) {
  tools::SizeRange range{.first = input.number<std::uint64_t>() % (std::size_t{1} << 40),
                         .last = input.number<std::uint64_t>() % (std::size_t{1} << 41),
                         .factor = input.number<double>()};
  if (input.number<std::uint8_t>() % 2 == 0) range.step = input.number<std::uint64_t>();
  const std::size_t unit = 1 + input.number<std::uint16_t>();
  range.first = range.first / unit * unit;
  fuzz::accepts(ErrorCode::InvalidArgument, [&] {
    const auto sizes = tools::sizes_in(range, unit);
    FUZZ_CHECK(!sizes.empty() && sizes.size() <= 1000 && sizes.front() == range.first && sizes.back() <= range.last);
    for (std::size_t i = 1; i < sizes.size(); ++i) FUZZ_CHECK(sizes[i] > sizes[i - 1] && sizes[i] % unit == 0);
  });
}

void parse_number(const std::string& text) {
  try {
    const int value = launch::whole_number("-n", text, 1, 1024);
    FUZZ_CHECK(value >= 1 && value <= 1024);
  } catch (const CLI::ValidationError&) {
  }
}

void parse_address(const std::string& text) {
  const bool numeric = is_numeric_address(text);
  const bool accepted = fuzz::accepts(ErrorCode::InvalidArgument, [&] {
    const SocketAddress address(text, 4711);
    FUZZ_CHECK(address.port() == 4711 && address.with_port(1).port() == 1);
    FUZZ_CHECK(is_numeric_address(address.host()) && address.text().ends_with(":4711"));
    FUZZ_CHECK(SocketAddress(address.host(), 4711).text() == address.text());
  });
  FUZZ_CHECK(accepted == numeric || text.find('\0') != std::string::npos);
}

void parse_host_and_port(const std::string& text) {
  fuzz::accepts(ErrorCode::InvalidArgument, [&] {
    const HostPort at = parse_host_port(text);
    FUZZ_CHECK(!at.host.empty());
    const HostPort again = parse_host_port("[" + at.host + "]:" + std::to_string(at.port));
    FUZZ_CHECK(again.host == at.host && again.port == at.port);
  });
}

void parse_ports(const std::string& text) {
  fuzz::accepts(ErrorCode::InvalidArgument, [&] {
    const PortRange ports = PortRange::from_text(text);
    FUZZ_CHECK(0 < ports.first && ports.first <= ports.last);
  });
}

void choose_interface(const std::string& text) {
  const auto cut = text.find('\n');
  const std::string list = text.substr(0, cut), name = cut == std::string::npos ? "eth0" : text.substr(cut + 1);
  const bool chosen = chooses_interface(list, name);
  if (!list.starts_with('^')) FUZZ_CHECK(chooses_interface("^" + list, name) != chosen);
}

void read_secret(const std::string& text) {
  fuzz::accepts(ErrorCode::InvalidArgument, [&] {
    const Secret secret = Secret::from_hex(text);
    FUZZ_CHECK(Secret::from_hex(secret.hex()).hex() == secret.hex());
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const auto which = input.number<std::uint8_t>();
  if (which == 'r') {
    make_ranges(input);
    return 0;
  }
  const std::string text(input.rest());
  parse_sizes(text);
  parse_number(text);
  parse_address(text);
  parse_host_and_port(text);
  parse_ports(text);
  choose_interface(text);
  read_secret(text);
  return 0;
}
