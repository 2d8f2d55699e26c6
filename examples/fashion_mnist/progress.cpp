#include "progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

namespace fashion_mnist {
namespace {

std::string minutes(double seconds) {
  const long whole = std::lround(seconds);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(const paceline::Recorder& recorder, ProgressOptions options)
    : recorder_(recorder), options_(options), style_(choose_style()) {}

void Progress::step(int epoch, std::size_t steps_done, double loss) {
  loss_ = steps_done == 1 ? loss : 0.95 * loss_ + 0.05 * loss;
  const auto now = std::chrono::steady_clock::now();
  if (!options_.shown || now < next_) return;
  const auto live = recorder_.live();
  if (live.steps == 0) return;  // the first step is still being recorded
  using namespace std::chrono_literals;
  next_ = now + (style_ == Style::Bar ? 100ms : 5000ms);
  const auto text = describe(epoch, steps_done, live);
  if (style_ == Style::Lines) return line(text);
  fmt::print("{:<{}}\r", text, drawn_);
  std::fflush(stdout);
  drawn_ = text.size();
}

void Progress::line(const std::string& text) {
  if (!options_.shown) return;
  fmt::print("{:<{}}\n", text, drawn_);  // spaces hide what is left of the bar
  std::fflush(stdout);
  drawn_ = 0;
}

Progress::Style Progress::choose_style() {
  const char* wish = std::getenv("PACELINE_PROGRESS");
  if (wish == nullptr) return isatty(STDOUT_FILENO) == 1 ? Style::Bar : Style::Lines;
  if (wish == std::string_view("bar")) return Style::Bar;
  if (wish == std::string_view("lines")) return Style::Lines;
  throw std::invalid_argument(fmt::format("PACELINE_PROGRESS is \"{}\"; set it to bar or lines, or unset it", wish));
}

std::string Progress::describe(int epoch, std::size_t steps_done, const paceline::LiveFigures& live) const {
  constexpr std::size_t kWidth = 6;  // with the launcher's tag, the line should fit in 80 columns
  const std::size_t full = std::min(kWidth, kWidth * steps_done / options_.steps);
  const std::string bar = style_ == Style::Bar ? fmt::format("[{:-<{}}] ", std::string(full, '='), kWidth) : "step ";
  return fmt::format("epoch {}/{} {}{}/{} loss {:.3f} {:.0f}/s {:.0f}% exposed ETA {}", epoch, options_.epochs, bar,
                     steps_done, options_.steps, loss_, live.samples_per_s * options_.world_size,
                     live.exposed_share * 100, minutes(live.step_s * static_cast<double>(options_.steps - steps_done)));
}

}  // namespace fashion_mnist
