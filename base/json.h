#ifndef DTRUN_BASE_JSON_H_
#define DTRUN_BASE_JSON_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// Reading and writing of JSON, compiled once: the parser and the writer are large templates.

namespace dtrun::base {

/// Throws nlohmann::json::parse_error if `text` is not JSON.
nlohmann::json ParseJson(std::string_view text);
/// Returns a value with is_discarded() if `text` is not JSON.
nlohmann::json ParseJsonOrDiscard(std::string_view text);

/// The text of a value: on one line, or with `indent` spaces a level. Bytes that are not UTF-8 are
/// replaced, as names of files and words of command lines may be any bytes.
std::string JsonText(const nlohmann::json& value, int indent = -1);
/// The same in ASCII.
std::string AsciiJsonText(const nlohmann::json& value);

}  // namespace dtrun::base

#endif
