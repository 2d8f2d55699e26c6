#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/observe/breakdown.h"
#include "paceline/observe/findings.h"
#include "paceline/observe/rank_summary.h"

// Internal: what the report and the ranks' summaries share when they are written as and read from JSON. It includes the
// JSON library, which public headers do not.

namespace paceline {

/// A value in a JSON document together with the path to it, so that an error can name the field. Every getter throws
/// Error Corrupt when the field is missing or of another kind.
class JsonField {
 public:
  /// `source` says what the document is, e.g. the file's path; it starts each error message.
  JsonField(const nlohmann::json& value, std::string source) : value_(&value), source_(std::move(source)) {}

  JsonField operator[](const std::string& key) const;
  std::vector<JsonField> items() const;

  bool is_null() const { return value_->is_null(); }
  double number() const;
  std::uint64_t count() const;
  int small_count() const;
  std::int64_t integer() const;
  std::string text() const;
  std::optional<double> number_or_null() const;
  std::optional<std::uint64_t> count_or_null() const;
  /// Null is the empty string.
  std::string text_or_null() const;

  [[noreturn]] void fail(const std::string& why) const;

 private:
  const nlohmann::json* value_;
  std::string source_;
  std::string path_;
};

/// Throws Error Corrupt, starting with `source`, when `text` is not JSON, or is nested too deeply.
nlohmann::json parse_json(std::string_view text, const std::string& source);
/// One line without `indent`; never throws for text that is not UTF-8, whose bad bytes are replaced.
std::string dump_json(const nlohmann::json& document, int indent = -1);

template <class Number>
nlohmann::json json_or_null(const std::optional<Number>& number) {
  return number ? nlohmann::json(*number) : nlohmann::json();
}
inline nlohmann::json json_or_null(const std::string& text) {
  return text.empty() ? nlohmann::json() : nlohmann::json(text);
}

/// The six parts of the step.
nlohmann::json parts_to_json(const StepBreakdown& breakdown);
void parts_from_json(const JsonField& field, StepBreakdown& breakdown);
nlohmann::json to_json(const StepTimes& times);
StepTimes step_times_from_json(const JsonField& field);
nlohmann::json to_json(const std::optional<NetworkFacts>& facts);
std::optional<NetworkFacts> network_from_json(const JsonField& field);
nlohmann::json to_json(const std::vector<Finding>& findings);
std::vector<Finding> findings_from_json(const JsonField& field);

}  // namespace paceline
