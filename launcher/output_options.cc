#include "launcher/output_options.h"

#include <optional>
#include <set>

#include "base/text.h"
#include "launcher/launch_error.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {

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
