#ifndef DTRUN_BASE_TEXT_H_
#define DTRUN_BASE_TEXT_H_

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace dtrun::base {

/// Returns the parts, one after the other.
///   Text("rank ", 3, " of ", 4)  ->  "rank 3 of 4"
template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

/// The fields between separators. "" has one field, which is empty.
std::vector<std::string> Split(const std::string& text, char separator);
std::string Join(const std::vector<std::string>& parts, const std::string& separator);
/// Parses a decimal integer. Returns nullopt if `text` is anything else or does not fit.
std::optional<int64_t> ParseInteger(const std::string& text);
/// "ranks 0, 2 and 3"; "rank 1"
std::string RankList(const std::vector<int>& ranks);
/// The same for ranks in ascending order that may be many: "ranks 0, 2 and 5-63"
std::string RankRanges(const std::vector<int>& ranks);

}  // namespace dtrun::base

#endif
