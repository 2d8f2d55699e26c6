#include "paceline/base/bounded_json.h"

#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace paceline {
namespace {

using nlohmann::json;

/// Sees a text go by and builds nothing: the library's own callbacks look at all of an object for each of its members.
class Bounds final : public json::json_sax_t {
 public:
  explicit Bounds(std::size_t most_depth) : most_depth_(most_depth) {}

  /// What is wrong; empty where nothing is, or the text is no JSON.
  const std::string& fault() const { return fault_; }

  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (names_.back().insert(name).second) return true;
    fault_ = "'" + name + "' stands there twice";
    return false;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override { return false; }

 private:
  bool open() {
    names_.emplace_back();
    if (names_.size() <= most_depth_) return true;
    fault_ = "it is nested too deeply";
    return false;
  }
  bool close() {
    names_.pop_back();
    return true;
  }

  std::size_t most_depth_;
  std::vector<std::unordered_set<std::string>> names_;  // of each list or object that is open
  std::string fault_;
};

}  // namespace

json parse_bounded_json(std::string_view text, std::size_t most_depth) {
  Bounds bounds(most_depth);
  if (!json::sax_parse(text, &bounds) && !bounds.fault().empty()) throw std::runtime_error(bounds.fault());
  return json::parse(text);  // which says where a text is no JSON
}

}  // namespace paceline
