// Each rank has at most one unfinished line. Add shows the lines that the new bytes complete. If
// the rank changes, Show ends the line of the other rank and writes a prefix.

#include "launcher/output/output_lines.h"

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

// The length of the first line with its end: '\n', '\r' or both; 0: no complete line. If the text
// ends with '\r', the next bytes decide whether a '\n' belongs to the line end.
size_t LineLength(std::string_view text) {
  const size_t end = text.find_first_of("\r\n");
  if (end == std::string_view::npos) return 0;
  if (text[end] == '\n') return end + 1;
  if (end + 1 == text.size()) return 0;
  return text[end + 1] == '\n' ? end + 2 : end + 1;
}

}  // namespace

std::string OutputLines::Add(int rank, std::string_view bytes, OutputTime now) {
  std::string shown;
  if (bytes.empty()) return shown;
  Unfinished& line = unfinished_.try_emplace(rank, Unfinished{"", now}).first->second;
  const bool resumed = !line.text.empty();
  line.text += bytes;
  std::string_view rest = line.text;
  for (size_t length; (length = LineLength(rest)) > 0; rest.remove_prefix(length))
    Show(rank, rest.substr(0, length), line.since, shown);
  if (rest.size() >= kLongest) {
    Show(rank, rest, line.since, shown);
    rest = {};
  }
  if (rest.empty()) {
    unfinished_.erase(rank);
  } else if (rest.size() < line.text.size() || !resumed) {
    line = {std::string(rest), now};
  }
  return shown;
}

std::string OutputLines::Expire(OutputTime now) {
  std::string shown;
  for (auto line = unfinished_.begin(); line != unfinished_.end();) {
    if (now - line->second.since < kPatience) {
      ++line;
      continue;
    }
    Show(line->first, line->second.text, line->second.since, shown);
    line = unfinished_.erase(line);
  }
  return shown;
}

std::string OutputLines::End(int rank) {
  std::string shown;
  const auto line = unfinished_.find(rank);
  if (line == unfinished_.end()) return shown;
  Show(rank, line->second.text, line->second.since, shown);
  unfinished_.erase(line);
  return shown;
}

void OutputLines::Show(int rank, std::string_view text, OutputTime begun, std::string& shown) {
  if (open_ && *open_ != rank) shown += '\n';
  if (open_ != rank || at_line_start_) shown += prefix_(rank, begun);
  shown += text;
  const bool ends = text.ends_with('\n');
  open_ = ends ? std::nullopt : std::optional<int>(rank);
  at_line_start_ = text.ends_with('\r');
}

using base::Text;

Tag ParseTag(const std::string& text) {
  if (text == "rank") return Tag::kRank;
  if (text == "host") return Tag::kHost;
  if (text == "none") return Tag::kNone;
  throw UsageError("expected one of rank|host|none");
}

std::vector<int> ParseRankList(const std::string& text, int ranks) {
  std::set<int> listed;
  for (const std::string& item : base::Split(text, ',')) {
    const size_t dash = item.find('-');
    const auto first = base::ParseInteger(item.substr(0, dash));
    const auto last = dash == std::string::npos ? first : base::ParseInteger(item.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= ranks)
      throw UsageError(Text(
          "--ranks: found ", ShellQuoted(item), "; expected ranks from 0 to ", ranks - 1,
          ", as in 0,3-5"));
    for (int64_t rank = *first; rank <= *last; ++rank) listed.insert(static_cast<int>(rank));
  }
  return {listed.begin(), listed.end()};
}

}  // namespace dtrun::launcher
