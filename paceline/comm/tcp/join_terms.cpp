#include "paceline/comm/tcp/join_terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

#include "paceline/net/secret.h"

namespace paceline {
namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(std::move(word));
  return words;
}

template <class Number>
bool read(std::string_view word, Number& number) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size();
}

bool is_secret(const std::string& word) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return word.size() == 2 * Secret::kBytes && std::all_of(word.begin(), word.end(), is_digit);
}

}  // namespace

std::string TcpTerms::text() const {
  return fmt::format("{} {} {} {}", generation, segment_bytes, static_cast<int>(all_reduce), secret);
}

std::optional<TcpTerms> TcpTerms::from_text(const std::string& text) {
  const auto words = words_of(text);
  TcpTerms terms;
  int algorithm = 0;
  if (words.size() < 3 || words.size() > 4 || !read(words[0], terms.generation) ||
      !read(words[1], terms.segment_bytes) || !read(words[2], algorithm)) {
    return std::nullopt;
  }
  if (algorithm < 0 || algorithm > static_cast<int>(Algorithm::Hierarchical)) return std::nullopt;
  terms.all_reduce = static_cast<Algorithm>(algorithm);
  if (!is_segment(terms.segment_bytes) || !is_all_reduce(terms.all_reduce)) return std::nullopt;
  if (words.size() == 4 && !is_secret(words[3])) return std::nullopt;
  if (words.size() == 4) terms.secret = words[3];
  return terms;
}

std::string Whereabouts::text() const {
  std::string text = fmt::format("{} {}", host, pid);
  for (const SocketAddress& address : addresses) text += fmt::format(" {} {}", address.host(), address.port());
  return text;
}

std::optional<Whereabouts> Whereabouts::from_text(const std::string& text) {
  const auto words = words_of(text);
  if (words.size() < 4 || words.size() % 2 != 0) return std::nullopt;
  Whereabouts result{.host = words[0]};
  if (!read(words[1], result.pid) || result.pid <= 0) return std::nullopt;
  for (std::size_t at = 2; at < words.size(); at += 2) {
    std::uint16_t port = 0;
    if (!is_numeric_address(words[at]) || !read(words[at + 1], port) || port == 0) return std::nullopt;
    result.addresses.emplace_back(words[at], port);
  }
  return result;
}

}  // namespace paceline
