#include "paceline/observe/json_field.h"

#include <fmt/format.h>

#include <exception>
#include <limits>

#include "paceline/base/bounded_json.h"
#include "paceline/base/error.h"

namespace paceline {

using nlohmann::json;

JsonField JsonField::operator[](const std::string& key) const {
  if (!value_->is_object()) fail("is not an object");
  JsonField field = *this;
  field.path_ = path_.empty() ? key : path_ + "." + key;
  const auto found = value_->find(key);
  if (found == value_->end()) field.fail("is missing");
  field.value_ = &*found;
  return field;
}

std::vector<JsonField> JsonField::items() const {
  if (!value_->is_array()) fail("is not a list");
  std::vector<JsonField> fields;
  for (std::size_t i = 0; i < value_->size(); ++i) {
    fields.push_back(*this);
    fields.back().value_ = &(*value_)[i];
    fields.back().path_ = fmt::format("{}[{}]", path_, i);
  }
  return fields;
}

double JsonField::number() const {
  if (!value_->is_number()) fail("is not a number");
  return value_->get<double>();
}

std::uint64_t JsonField::count() const {
  if (!value_->is_number_unsigned()) fail("is not a whole number of 0 or more");
  return value_->get<std::uint64_t>();
}

int JsonField::small_count() const {
  const std::uint64_t value = count();
  if (value > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) fail("is too large");
  return static_cast<int>(value);
}

std::int64_t JsonField::integer() const {
  if (!value_->is_number_integer()) fail("is not a whole number");
  return value_->get<std::int64_t>();
}

std::string JsonField::text() const {
  if (!value_->is_string()) fail("is not text");
  return value_->get<std::string>();
}

std::optional<double> JsonField::number_or_null() const {
  return value_->is_null() ? std::nullopt : std::optional(number());
}

std::optional<std::uint64_t> JsonField::count_or_null() const {
  return value_->is_null() ? std::nullopt : std::optional(count());
}

std::string JsonField::text_or_null() const { return value_->is_null() ? std::string() : text(); }

void JsonField::fail(const std::string& why) const {
  throw Error(ErrorCode::Corrupt, fmt::format("{}: {} {}", source_,
                                              path_.empty() ? "the document" : fmt::format("field '{}'", path_), why));
}

json parse_json(std::string_view text, const std::string& source) {
  constexpr std::size_t kMostDepth = 32;
  try {
    return parse_bounded_json(text, kMostDepth);
  } catch (const std::exception& e) {
    throw Error(ErrorCode::Corrupt, fmt::format("{}: not JSON, or cut short: {}", source, e.what()));
  }
}

std::string dump_json(const json& document, int indent) {
  return document.dump(indent, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

json parts_to_json(const StepBreakdown& breakdown) {
  return {{"data_wait", breakdown.data_wait_s}, {"forward", breakdown.forward_s},
          {"backward", breakdown.backward_s},   {"exposed_comm", breakdown.exposed_comm_s},
          {"optimizer", breakdown.optimizer_s}, {"other", breakdown.other_s}};
}

void parts_from_json(const JsonField& field, StepBreakdown& breakdown) {
  breakdown.data_wait_s = field["data_wait"].number();
  breakdown.forward_s = field["forward"].number();
  breakdown.backward_s = field["backward"].number();
  breakdown.exposed_comm_s = field["exposed_comm"].number();
  breakdown.optimizer_s = field["optimizer"].number();
  breakdown.other_s = field["other"].number();
}

json to_json(const StepTimes& times) {
  return {{"mean", times.mean_s}, {"p50", times.p50_s}, {"p90", times.p90_s}, {"p99", times.p99_s}};
}

StepTimes step_times_from_json(const JsonField& field) {
  return {field["mean"].number(), field["p50"].number(), field["p90"].number(), field["p99"].number()};
}

json to_json(const std::optional<NetworkFacts>& facts) {
  if (!facts) return nullptr;
  return {{"worst_round_trip_s", facts->worst_round_trip_s},
          {"retransmits", facts->retransmits},
          {"bytes_sent", facts->bytes_sent},
          {"bytes_received", facts->bytes_received}};
}

std::optional<NetworkFacts> network_from_json(const JsonField& field) {
  if (field.is_null()) return std::nullopt;
  return NetworkFacts{field["worst_round_trip_s"].number(), field["retransmits"].count(), field["bytes_sent"].count(),
                      field["bytes_received"].count()};
}

json to_json(const std::vector<Finding>& findings) {
  json list = json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"id", finding.id},
                    {"severity", to_string(finding.severity)},
                    {"evidence", finding.evidence},
                    {"cost_s", finding.cost_s},
                    {"fix", finding.fix},
                    {"max_gain", finding.max_gain}});
  }
  return list;
}

namespace {

Severity severity_from_json(const JsonField& field) {
  const std::string name = field.text();
  for (Severity severity : {Severity::Info, Severity::Warning, Severity::Error}) {
    if (name == to_string(severity)) return severity;
  }
  field.fail(fmt::format("is '{}', not info, warning or error", name));
}

}  // namespace

std::vector<Finding> findings_from_json(const JsonField& field) {
  std::vector<Finding> list;
  for (const JsonField& item : field.items()) {
    list.push_back({item["id"].text(), severity_from_json(item["severity"]), item["evidence"].text(),
                    item["cost_s"].number(), item["fix"].text(), item["max_gain"].number()});
  }
  return list;
}

}  // namespace paceline
