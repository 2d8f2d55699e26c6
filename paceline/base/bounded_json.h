#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace paceline {

/// A JSON text from outside, in time that grows with its length. Throws a std::exception that says what is wrong: no
/// JSON, lists and objects more than `most_depth` inside each other (the library's recursion would end the process), or
/// a name that stands twice in one object (of which the library would keep the last).
///
/// Internal, as the JSON library is: public headers do not include it.
nlohmann::json parse_bounded_json(std::string_view text, std::size_t most_depth);

}  // namespace paceline
