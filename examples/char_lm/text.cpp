#include "text.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace char_lm {
namespace {

constexpr const char* kCommand = "bible -f gen1:1-rev22:21";

std::string king_james() {
  std::FILE* pipe = ::popen(kCommand, "r");
  if (pipe == nullptr) throw std::runtime_error(std::string("cannot run ") + kCommand);
  std::string printed;
  std::array<char, 65536> block{};
  while (const std::size_t got = std::fread(block.data(), 1, block.size(), pipe)) printed.append(block.data(), got);
  if (::pclose(pipe) != 0 || printed.empty()) {
    throw std::runtime_error(std::string("`") + kCommand +
                             "` printed nothing: apt-get install bible-kjv bible-kjv-text, or "
                             "give a file with --text");
  }
  std::istringstream lines(printed);
  std::string text;
  for (std::string line; std::getline(lines, line);) text += line.substr(line.find(' ') + 1) + '\n';
  return text;
}

}  // namespace

Text load_text(const std::filesystem::path& file) {
  std::string bytes;
  if (file.empty()) {
    bytes = king_james();
  } else {
    std::ifstream stream(file, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(stream), {});
    if (!stream || bytes.empty()) throw std::runtime_error("cannot read " + file.string() + ", or it is empty");
  }
  std::array<std::int64_t, 256> number{};
  for (const char c : bytes) number[static_cast<unsigned char>(c)] = 1;
  std::int64_t kinds = 0;
  for (std::int64_t& n : number) n = n != 0 ? kinds++ : 0;
  Text text{.characters = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kInt64), .kinds = kinds};
  auto* to = text.characters.data_ptr<std::int64_t>();
  for (const char c : bytes) *to++ = number[static_cast<unsigned char>(c)];
  return text;
}

std::shared_ptr<paceline::TensorDataset> sequences(const Text& text, std::int64_t context, Part part) {
  const std::int64_t split = text.characters.size(0) * 19 / 20;
  const auto own = part == Part::Train ? text.characters.slice(0, 0, split) : text.characters.slice(0, split);
  const std::int64_t count = (own.size(0) - 1) / context;
  if (count < 1) throw std::runtime_error("the text is too short for sequences of this length");
  return std::make_shared<paceline::TensorDataset>(own.slice(0, 0, count * context).view({count, context}),
                                                   own.slice(0, 1, count * context + 1).reshape({count, context}));
}

}  // namespace char_lm
